"""What agents of each protocol know beyond starting a task, as bits: jobs go where all that they need is known."""

from __future__ import annotations

from typing import Final

#: What a job may need of its node's agent, by its bit.
FEATURES: Final = {
    "secrets": 1,
    "checkpoints": 2,
    "probes": 4,
    "uploads": 8,
    "artifacts": 16,
    "output files": 32,
    "signals": 64,
}
ALL: Final = sum(FEATURES.values())
#: The first protocol (`scheduler.agent.PROTOCOL`) that knows each of them.
SINCE: Final = dict.fromkeys(FEATURES, 2)


def known_by(protocol: int) -> int:
    """The bits that an agent of this protocol knows."""
    return sum(bit for name, bit in FEATURES.items() if SINCE[name] <= protocol)


def in_words(bits: int) -> str:
    """`checkpoints and secrets`."""
    names = [name for name, bit in FEATURES.items() if bits & bit]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def needed(
    *, secrets: object, checkpoint: object, probes: object, upload: object, artifacts: object, output: object,
    signals: object,
) -> int:  # fmt: skip
    """The bits that a job needs, which has something of each."""
    has = (secrets, checkpoint, probes, upload, artifacts, output, signals)
    return sum(bit for bit, one in zip(FEATURES.values(), has, strict=True) if one)
