"""What sends the messages that wake workers, for web processes and workers alike.

queue.py writes them into Redis, rabbitmq.py publishes them where `broker_url` is set. They are
here, because `web` does not import `worker`; worker/celery/ reads them and says why so little of
Celery is used.
"""
