"""Fair share, quota requests and the ledger."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import DAY, HOUR, Setting

SETTINGS: Final = (
    Setting(
        "MUSTER_FAIRSHARE_MODE",
        "str",
        "exponential",
        "Decay of past usage: exponential, window, none.",
        choices=("exponential", "window", "none"),
    ),
    Setting("MUSTER_FAIRSHARE_HALF_LIFE_SECONDS", "int", DAY, "Half-life of past usage.", "s", least=60),
    Setting("MUSTER_FAIRSHARE_WINDOW_SECONDS", "int", 7 * DAY, "Window of past usage.", "s", least=60),
    Setting(
        "MUSTER_FAIRSHARE_WEIGHTS",
        "dict",
        {"gpu": 1.0, "cpu": 0.0, "memory": 0.0},
        "Weight of each resource.",
        choices=("gpu", "cpu", "memory"),
    ),
    Setting("MUSTER_FAIRSHARE_DOMINANT", "bool", False, "Count the dominant resource instead of the sum."),
    Setting("MUSTER_FAIRSHARE_METRICS", "bool", True, "Metrics of shares, of 500 projects at most."),
    Setting(
        "QUOTA_HEADROOM_PERCENT",
        "int",
        15,
        "Part of the cluster that the sum of limits should leave free.",
        "%",
        most=100,
    ),
    Setting(
        "QUOTA_SECOND_APPROVER_PERCENT",
        "int",
        100,
        "A quota request above this raise needs a second approval; 0: never.",
        "%",
    ),
    Setting(
        "LEDGER_OPEN_HOLD_SECONDS",
        "int",
        HOUR,
        "Time reserved at a time for a job without a time limit.",
        "s",
        least=1,
    ),
    Setting(
        "LEDGER_FORGIVES",
        "list",
        ["lost"],
        "Ends whose usage is refunded: lost, preempted.",
        choices=("lost", "preempted"),
    ),
    Setting("LEDGER_CURRENCY", "str", "EUR", "Currency of prices and money budgets.", form="code"),
)
