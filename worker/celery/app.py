"""The Celery application of `python -m worker` (or `celery -A worker.celery.app worker`)."""

import celery.apps.worker
import structlog
from celery import Celery
from celery.signals import setup_logging
from kombu import Queue

from models.celery.rabbitmq import TRANSPORT_OPTIONS, task_queue
from models.config.configuration import load
from models.config.settings import Settings
from models.redis.channels import BACKGROUND, INTERACTIVE, QUARANTINE, RUN_RESPONSE
from models.redis.client import KEEPALIVE_OPTIONS, broker_of

logger = structlog.get_logger()

BROKER_OPTIONS = {
    "socket_connect_timeout": 2,
    "socket_timeout": 3,
    "socket_keepalive": True,
    "socket_keepalive_options": KEEPALIVE_OPTIONS,
    "ack_emulation": False,
}
"""For Celery's connection, which declares the queues; wakeups.py reads them. The time limits are
seconds. Without acknowledgements kombu keeps no second copy of each message in Redis."""


class WorkerApp(Celery):
    """A Celery application with the settings, which the pool reads."""

    settings: Settings


def create_app(settings: Settings) -> WorkerApp:
    """The Celery application of a worker. Its only task is run by pool.py, not by Celery."""
    broker, options = broker_of(settings)
    names = (QUARANTINE,) if settings.quarantine else (INTERACTIVE, BACKGROUND)
    # A message is only a wake-up: a lost or repeated one is harmless, so none is kept back.
    # Nor are they declared: a list needs no declaration, and a Redis that is full would refuse it,
    # which ends Celery.
    queues = [Queue(name, routing_key=name, no_ack=True, no_declare=True) for name in names]
    options = BROKER_OPTIONS | options
    if settings.broker_url is not None:
        broker = settings.broker_url.get_secret_value()
        options = {**TRANSPORT_OPTIONS, "socket_settings": KEEPALIVE_OPTIONS}
        queues = [task_queue(name) for name in names]
    app = WorkerApp("backburner", broker=broker, set_as_current=True)
    app.settings = settings
    app.conf.update(
        worker_pool="worker.celery.pool:AsyncioPool",
        worker_consumer="worker.celery.pool:EventLoopConsumer",
        task_queues=queues,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # RabbitMQ ends no connection for silence; keepalives end one that the network has lost.
        broker_heartbeat=0,
        broker_transport_options=options,
    )
    app.task(name=RUN_RESPONSE)(_run_response)
    setup_logging.connect(_skip_logging_setup, weak=False)
    celery.apps.worker.safe_say = _log_message  # type: ignore[attr-defined]
    return app


def _run_response(*response_ids: str) -> None:
    raise RuntimeError(f"{response_ids}: the pool runs this task, it is never called")


def _skip_logging_setup(**_: object) -> None:
    """Does nothing. Celery configures no logging if this signal has a receiver."""


def _log_message(message: str, _stream: object = None) -> None:
    """What Celery would write on standard output while it handles a signal."""
    logger.info("celery_message", text=message)


def __getattr__(name: str) -> WorkerApp:
    """Makes `app` from the environment when `celery -A` reads it, not on import."""
    if name != "app":
        raise AttributeError(name)
    return create_app(load("worker"))
