"""The broker's transport: kombu's for Redis, and one repair for a worker whose broker went away during a task."""

from __future__ import annotations

from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis, virtual


class QoS(redis.QoS):
    """Counts a message as done although the broker could not be reached to say so.

    kombu keeps such a message among those in hand. A worker that takes one message at a time then takes no other
    one, for as long as it lives, and never notices: it asks the broker for nothing. The broker itself gives the
    message out again once its visibility timeout is over, and each of our tasks may run twice.
    """

    def ack(self, delivery_tag: Any) -> None:
        try:
            super().ack(delivery_tag)
        except Exception:
            virtual.QoS.ack(self, delivery_tag)
            raise


class Channel(redis.Channel):
    QoS = QoS


class Transport(redis.Transport):
    Channel = Channel


def register() -> None:
    """Let addresses that begin with redis:// be served by this transport."""
    TRANSPORT_ALIASES["redis"] = "config.broker:Transport"
