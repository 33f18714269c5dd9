"""`python -m worker [--streams N] [--quarantine]`: one worker process."""

import gc

if __name__ == "__main__":
    gc.disable()  # imports free nothing, and collections are a sixth of their time

import argparse
import os
import socket
import sys
import warnings
from typing import Any

import structlog

from models import logs
from models.config.configuration import load
from models.config.routes import Routes
from models.config.settings import Settings
from models.config.upstream_access import all_secrets
from models.confinement.kernel import forbid_dumps
from models.confinement.policy import missing
from models.db.database import DATABASE_UNAVAILABLE, TransactionPooling, wait_until_available
from models.process import give_back_large_blocks, raise_open_file_limit
from models.redis.channels import BACKGROUND, INTERACTIVE, QUARANTINE
from worker.celery.app import create_app
from worker.process.limits import LEAST_HEADROOM, QUARANTINE_SLOTS, MemoryBudget, slots_for

_FILES_PER_SLOT = 2
_RESERVED_FILES = 200
"""Open files for everything that is not a response: pools, Redis, logs, libraries."""


def main() -> None:
    """Runs until SIGTERM. Exits with 1 if it cannot start."""
    arguments = _parser().parse_args()
    settings = load("quarantine" if arguments.quarantine else "worker")
    if not settings.debuggable:
        forbid_dumps()
    is_quarantine = arguments.quarantine or settings.quarantine
    settings = settings.model_copy(update={"quarantine": is_quarantine})
    slots = QUARANTINE_SLOTS if is_quarantine else slots_for(arguments.streams)
    kind = "quarantine" if is_quarantine else "worker"
    logs.configure(settings.log_level, process=kind)
    logs.hide([*all_secrets(Routes(settings).upstreams.values()), *settings.s3.secrets])
    logs.capture_output()
    for tool, variable in settings.missing_tools.items():
        structlog.get_logger().info("tool_unavailable", tool=tool, setting=variable)
    if lacking := missing():
        structlog.get_logger().warning("confinement_incomplete", missing=lacking)
    give_back_large_blocks()
    max_slots = (raise_open_file_limit() - _RESERVED_FILES) // _FILES_PER_SLOT
    if slots > max_slots:
        structlog.get_logger().critical(
            "too_many_streams",
            slots=slots,
            max_slots=max_slots,
            reason="the limit of open files",
        )
        sys.exit(1)
    _require_memory(settings)
    warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")
    try:
        wait_until_available(settings)
        # Not by `worker_main`: Celery's command line costs 0.35 s of each start.
        worker = create_app(settings).Worker(**_celery_options(kind, slots))
        worker.start()
        sys.exit(worker.exitcode)
    except DATABASE_UNAVAILABLE as error:
        structlog.get_logger().critical("database_unavailable", error=str(error).strip())
        sys.exit(1)
    except TransactionPooling as error:
        structlog.get_logger().critical("transaction_pooling", error=str(error))
        sys.exit(1)


def _require_memory(settings: Settings) -> None:
    """Ends the process if its budget leaves nothing for responses."""
    budget = MemoryBudget(settings.worker.memory_budget)
    if budget.is_limited and budget.headroom < LEAST_HEADROOM:
        structlog.get_logger().critical(
            "memory_budget_too_small",
            budget_bytes=budget.limit,
            least_bytes=budget.idle + LEAST_HEADROOM,
            setting="BACKBURNER_WORKER__MEMORY, or the memory of the container",
        )
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m worker", description="A worker process: claims responses and runs them."
    )
    parser.add_argument(
        "--streams",
        type=int,
        default=1000,
        help="background responses at a time (default 1000); "
        "one ninth more slots are reserved for foreground responses",
    )
    parser.add_argument(
        "--quarantine",
        action="store_true",
        help="run only responses whose workers crashed twice, in small groups",
    )
    return parser


def _celery_options(kind: str, slots: int) -> dict[str, Any]:
    return {
        "hostname": f"{kind}-{os.getpid()}@{socket.gethostname()}",
        "queues": QUARANTINE if kind == "quarantine" else f"{INTERACTIVE},{BACKGROUND}",
        "concurrency": slots,
        "loglevel": "WARNING",
        "quiet": True,
        "without_gossip": True,
        "without_mingle": True,
        "without_heartbeat": True,
    }


if __name__ == "__main__":
    main()
