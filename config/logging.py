"""One line of JSON a log record, with the request or task it belongs to."""

from __future__ import annotations

import logging.config
from typing import Any

import structlog

SHARED: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
    structlog.processors.UnicodeDecoder(),
]


def logging_config(*, level: str, json: bool) -> dict[str, Any]:
    """The dictionary for `logging.config`: everything to standard error, where the supervisor keeps it."""
    renderer: Any = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    )
    last = [structlog.processors.format_exc_info, renderer] if json else [renderer]
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "lines": {
                "()": structlog.stdlib.ProcessorFormatter,
                "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
                "foreign_pre_chain": [*SHARED, structlog.stdlib.ExtraAdder()],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Says "Not Found: /path" beside the request line that says it better.
            "django.request": {"level": "ERROR"},
            "django.server": {"level": "WARNING"},
            # One line for each scheduled task, each second, is noise.
            "celery.beat": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},
            "celery.worker.strategy": {"level": "WARNING"},
            "django_structlog.celery": {"level": "WARNING"},
            "uvicorn.access": {"level": "WARNING"},
            "httpx": {"level": "WARNING"},
        },
    }


def configure(config: dict[str, Any]) -> None:
    """Set up the standard library's logging and structlog alike; Django calls this with its LOGGING."""
    logging.config.dictConfig(config)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
