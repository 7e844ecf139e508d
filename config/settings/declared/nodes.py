"""Agents: how they join, when a node counts as lost or is drained, how much of output and scratch is kept."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import MIB, Setting

SETTINGS: Final = (
    Setting("MUSTER_JOIN_TOKEN", "str", "", "Token with which an agent registers its node.", secret=True),
    Setting(
        "MUSTER_SYNC_HOLD_SECONDS",
        "float",
        20.0,
        "Longest time that the server holds an idle sync call of an agent.",
        "s",
        most=300,
    ),
    Setting(
        "MUSTER_NODE_SILENT_SECONDS",
        "int",
        30,
        "Time without a heartbeat after which a node is `unknown`.",
        "s",
        least=1,
    ),
    Setting(
        "MUSTER_NODE_LOST_SECONDS",
        "int",
        900,
        "Time without a heartbeat after which a node is `down` and its jobs are lost.",
        "s",
        least=1,
    ),
    Setting(
        "MUSTER_QUARANTINE_PEOPLE",
        "int",
        3,
        "A node drains when jobs of this number of people failed on it, by its fault or unhealthy; 0 = never.",
    ),
    Setting("MUSTER_QUARANTINE_FAILURES", "int", 5, "The least number of such failures.", least=1),
    Setting("MUSTER_QUARANTINE_SECONDS", "int", 600, "The time in which they count.", "s", least=1),
    Setting(
        "MUSTER_LOG_CAP_BYTES", "int", 64 * MIB, "Stored output per stream of a task.", "bytes", least=4096
    ),
    Setting(
        "MUSTER_NODE_SCORE_HALF_LIFE_DAYS",
        "float",
        7.0,
        "Age at which an attempt counts half for the scores of its node; after four it counts nothing. 0 = no scores.",
        "days",
    ),
    Setting(
        "MUSTER_SCRATCH_MIB",
        "int",
        0,
        "Disk that a task may fill on its node, where its job asks for no storage and its queue has no "
        "`scratch_mib`; 0: unlimited.",
        "MiB",
    ),
)
