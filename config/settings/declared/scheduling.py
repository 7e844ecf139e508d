"""The default policy, and the intervals of planning, reconciliation and forecasts."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import Setting

SETTINGS: Final = (
    Setting("SCHEDULING_POLICY", "str", "fifo", "Order of the default profile: fifo, priority, fairshare."),
    Setting(
        "SCHEDULING_BACKFILL",
        "str",
        "easy",
        "Backfill of the default profile of a new installation: none, easy, conservative.",
    ),
    Setting(
        "UNLIMITED_JOB_SECONDS",
        "int",
        86_400,
        "Expected run time of a job without a time limit and without earlier runs; for planning only.",
        "s",
    ),
    Setting(
        "PRIORITY_BOOST_CAP",
        "int",
        100,
        "Highest effective priority that a boost or ageing can reach.",
    ),
    Setting("MUSTER_PLAN_SECONDS", "float", 3.0, "Interval of planning without a change.", "s"),
    Setting(
        "MUSTER_PLANNER_CHECK_SECONDS",
        "float",
        600.0,
        "Interval at which a planner checks the pending jobs that it has in memory against the database.",
        "s",
    ),
    Setting(
        "MUSTER_RECONCILE_SECONDS",
        "float",
        5.0,
        "Interval of the reconciliation with the nodes.",
        "s",
    ),
    Setting("MUSTER_FORECAST_SECONDS", "float", 20.0, "Interval of start forecasts.", "s"),
    Setting("MUSTER_LEASE_SECONDS", "int", 15, "Lease of a planner on a cluster.", "s"),
    Setting("MUSTER_GRACE_SECONDS", "int", 60, "Time from SIGTERM to SIGKILL.", "s"),
    Setting("INVENTORY_SERVICE_URL", "str", "", "Reserved; not used yet."),
)
