"""The Celery application of a worker: `python -m worker`, or `python -m celery -A worker.app worker`."""

from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_ready

from models.config.configuration import load
from models.config.settings import Settings
from models.redis.channels import RUN_RESPONSE


class WorkerApp(Celery):
    """Celery with our settings in hand, for the pool."""

    settings: Settings


def create_app(settings: Settings) -> WorkerApp:
    """A worker's Celery application. Its one task is run by worker/pool.py, not by Celery's tracer."""
    app = WorkerApp("backburner", broker=settings.redis_url.get_secret_value(), set_as_current=True)
    app.settings = settings
    app.conf.update(
        worker_pool="worker.pool:AsyncioPool",
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        # A message is a doorbell: losing or doubling one is harmless, and one that is held back would only be in the way.
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_connect_timeout": 2,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "visibility_timeout": 3600,
        },
    )
    app.task(name=RUN_RESPONSE)(_run_response)
    worker_ready.connect(_attach_consumer, weak=False)
    setup_logging.connect(_skip_logging_setup, weak=False)
    return app


def _run_response(response_id: str) -> None:
    raise RuntimeError(f"{response_id}: run by the pool, never called")


def _attach_consumer(sender: Any, **_: object) -> None:
    """The pool stops and resumes one of the consumer's queues."""
    sender.pool.consumer = sender


def _skip_logging_setup(**_: object) -> None:
    """That anybody listens to this signal keeps Celery from configuring logging."""


def __getattr__(name: str) -> WorkerApp:
    """`app`, made from the environment when `celery -A worker.app` asks for it: nothing is configured by an import alone."""
    if name != "app":
        raise AttributeError(name)
    return create_app(load())
