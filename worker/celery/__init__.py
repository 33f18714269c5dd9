"""All of the worker that knows Celery; models/celery/ is the half that sends its messages.

Celery was made for tasks that take seconds and use a process or a thread each. A response waits on
sockets for minutes or hours, a worker runs a thousand, and its row in PostgreSQL is the job. The
message only wakes a worker, so a lost or repeated one does no harm.

Celery gives:
- the process: start, warm and cold stop, and what each signal does;
- the connection to the broker, which is made again after an error, and RabbitMQ beside Redis;
- the format of the messages, and the decoding of each.

What is replaced, and why:
- pool.py: the pool. Celery has none for asyncio; this one runs the engine in one event loop
  (ADR 0002). And the loop that waits for messages: Celery's thread gets Python's lock from a busy
  event loop only every 5 ms, several times a message (docs/architecture.md).
- wakeups.py: the reader of Redis, in the event loop. kombu's blocks, and keeps a second copy of
  each message until it is acknowledged.
- models/celery/queue.py: the sender. A message that kombu writes takes 0.27 ms and 1 KB; here
  many ids share one of 0.3 KB.
- models/celery/rabbitmq.py replaces nothing: kombu's client sends in a thread (docs/scaling.md).
- Task records, results, retries, remote control and events: the row, the attempt, the operator's
  commands and the metrics are these. app.py switches them off.

The engine (worker/process/engine.py) imports nothing of Celery: bench/ runs it without.
tests/unit/test_library_internals.py lists what is used of Celery's own insides.
"""
