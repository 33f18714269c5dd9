"""Logging: one JSON object per line on standard error, with a constant event name and fields.

Keys, input and output are never logged.
"""

import logging
import sys

import structlog


def configure(level: str, **bound: object) -> None:
    """Sets up structlog and the standard library's root logger; every line has the fields
    `bound`."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    foreign = logging.StreamHandler(sys.stderr)
    foreign.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        )
    )
    logging.basicConfig(level=max(number, logging.INFO), handlers=[foreign], force=True)
    for chatty in ("celery", "httpx", "httpx2", "httpcore2", "openai", "kombu", "amqp"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # the MCP client logs what servers send, with tracebacks; the response reports these errors
    logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
    structlog.contextvars.bind_contextvars(**bound)
