"""Hints that something has changed: after commit, one Redis channel, no promise.

The rows are the truth: pages look again by themselves and clocks run anyway, so a lost hint costs time and
nothing else, and a Redis that is down never fails a request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import redis
import structlog
from django.conf import settings
from django.db import transaction

log = structlog.get_logger(__name__)

#: One channel carries all hints; each web process listens once and fans out (scheduler.relay).
CHANNEL: Final = "muster:live"

#: Limits, budgets and what was asked for.
QUOTAS_TOPIC: Final = "quotas"


def user_topic(user_id: int) -> str:
    return f"user:{user_id}"


def project_topic(project_id: int) -> str:
    return f"project:{project_id}"


def announce(*topics: str) -> None:
    """Tell listeners of these topics to look again, once the current transaction has committed."""
    announce_many(topics)


def announce_many(topics: Iterable[str]) -> None:
    wanted = sorted(set(topics))
    if wanted:
        transaction.on_commit(lambda: publish(wanted), robust=True)


def publish(topics: list[str]) -> None:
    """Tell them now."""
    try:
        client().publish(CHANNEL, json.dumps({"topics": topics}))
    except redis.RedisError as error:
        log.warning("hints_unavailable", what="publish", error=str(error))


@lru_cache(maxsize=1)
def client() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1.0, socket_connect_timeout=0.5)
