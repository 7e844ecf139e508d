"""The default policy, and the intervals of planning, reconciliation and forecasts."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import Setting

SETTINGS: Final = (
    Setting(
        "SCHEDULING_POLICY",
        "str",
        "fifo",
        "Order of the profile `default`, given to the profile at each start. Not set: fifo in a new installation, then "
        "what the profile says.",
        choices=("fifo", "priority", "fairshare", "sjf", "edf", "fair_queue"),
    ),
    Setting(
        "SCHEDULING_BACKFILL",
        "str",
        "easy",
        "Backfill of the profile `default`, in the same way. Not set: easy in a new installation.",
        choices=("none", "easy", "conservative", "aggressive", "deadline"),
    ),
    Setting(
        "UNLIMITED_JOB_SECONDS",
        "int",
        86_400,
        "Expected run time of a job without a time limit and without earlier runs; for planning only.",
        "s",
        least=1,
    ),
    Setting(
        "PRIORITY_BOOST_CAP",
        "int",
        100,
        "Highest effective priority that a boost or ageing can reach.",
    ),
    Setting(
        "MUSTER_PLAN_SECONDS",
        "float",
        3.0,
        "Interval of planning without a change.",
        "s",
        least=0.1,
        most=3600,
    ),
    Setting(
        "MUSTER_PLANNER_CHECK_SECONDS",
        "float",
        600.0,
        "Interval at which a planner checks the pending jobs that it has in memory against the database.",
        "s",
        least=1,
    ),
    Setting(
        "MUSTER_RECONCILE_SECONDS",
        "float",
        5.0,
        "Interval of the reconciliation with the nodes.",
        "s",
        least=0.1,
        most=3600,
    ),
    Setting(
        "MUSTER_FORECAST_SECONDS", "float", 20.0, "Interval of start forecasts.", "s", least=0.1, most=3600
    ),
    Setting("MUSTER_LEASE_SECONDS", "int", 15, "Lease of a planner on a cluster.", "s", least=2, most=600),
    Setting("MUSTER_GRACE_SECONDS", "int", 60, "Time from SIGTERM to SIGKILL.", "s", most=86_400),
    Setting(
        "INVENTORY_SERVICE_URL",
        "str",
        "",
        "Inventory service of the site: zones and racks of nodes are those of its `/api/v1/topology`, by node name. "
        "Empty: they are set by hand.",
        form="url",
    ),
    Setting("INVENTORY_SERVICE_TOKEN", "str", "", "Bearer token for the inventory service.", secret=True),
    Setting(
        "INVENTORY_SERVICE_SECONDS",
        "float",
        60.0,
        "Interval of asking the inventory service.",
        "s",
        least=1,
    ),
)
