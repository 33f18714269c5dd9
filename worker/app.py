"""The Celery application of `python -m worker`, or of `python -m celery -A worker.app worker`."""

from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_ready

from models.config.configuration import load
from models.config.settings import Settings
from models.redis.channels import RUN_RESPONSE
from models.redis.client import KEEPALIVE_OPTIONS, broker_of

BROKER_OPTIONS = {
    "socket_connect_timeout": 2,
    "socket_timeout": 3,
    "socket_keepalive": True,
    "socket_keepalive_options": KEEPALIVE_OPTIONS,
    "health_check_interval": 3,
    "visibility_timeout": 3600,
}
"""For consuming. Messages are awaited with BRPOP, which replies every second; kombu connects again
if a reply is late by `health_check_interval`, and looks that often. Its other commands block
Celery's thread until `socket_timeout` (seconds): without that limit the first of them on a lost
connection would end all consuming."""


class WorkerApp(Celery):
    """A Celery application with the settings, which the pool reads."""

    settings: Settings


def create_app(settings: Settings) -> WorkerApp:
    """The Celery application of a worker. Its only task is run by worker/pool.py, not by Celery."""
    broker, options = broker_of(settings)
    app = WorkerApp("backburner", broker=broker, set_as_current=True)
    app.settings = settings
    app.conf.update(
        worker_pool="worker.pool:AsyncioPool",
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        # A message is only a wake-up: a lost or repeated one is harmless, so none is kept back.
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options=BROKER_OPTIONS | options,
    )
    app.task(name=RUN_RESPONSE)(_run_response)
    worker_ready.connect(_attach_consumer, weak=False)
    setup_logging.connect(_skip_logging_setup, weak=False)
    return app


def _run_response(response_id: str) -> None:
    raise RuntimeError(f"{response_id}: the pool runs this task, it is never called")


def _attach_consumer(sender: Any, **_: object) -> None:
    """Gives the pool the consumer, whose queues it leaves and joins."""
    sender.pool.attach(sender)


def _skip_logging_setup(**_: object) -> None:
    """Does nothing. Celery configures no logging if this signal has a receiver."""


def __getattr__(name: str) -> WorkerApp:
    """Makes `app` from the environment when `celery -A worker.app` reads it, not on import."""
    if name != "app":
        raise AttributeError(name)
    return create_app(load())
