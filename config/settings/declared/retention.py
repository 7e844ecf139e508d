"""How long rows are kept."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import Setting

SETTINGS: Final = (
    Setting("MUSTER_KEEP_CYCLES_DAYS", "int", 2, "Recorded planning cycles.", "days", least=1),
    Setting("MUSTER_KEEP_LOGS_DAYS", "int", 30, "Output of ended jobs.", "days"),
    Setting("MUSTER_KEEP_JOBS_DAYS", "int", 0, "Ended jobs; 0: unlimited.", "days"),
    Setting("MUSTER_KEEP_EVENTS_DAYS", "int", 0, "Events of ended jobs; 0: unlimited.", "days"),
    Setting("MUSTER_KEEP_FORECASTS_DAYS", "int", 400, "Accuracy of forecasts; 0: unlimited.", "days"),
    Setting(
        "MUSTER_KEEP_SHARES_DAYS",
        "int",
        35,
        "Fair-share usage in slices of six hours; 0: unlimited.",
        "days",
    ),
    Setting(
        "MUSTER_KEEP_LEDGER_DAYS",
        "int",
        0,
        "Single ledger entries, before they are summed by day; 0: unlimited.",
        "days",
    ),
    Setting(
        "MUSTER_KEEP_AUDIT_DAYS",
        "int",
        0,
        "Rows of the audit trail, before a signed checkpoint replaces them; 0: unlimited.",
        "days",
    ),
    Setting("MUSTER_KEEP_ALERTS_DAYS", "int", 400, "Ended alerts and their notices; 0: unlimited.", "days"),
    Setting("MUSTER_KEEP_DRIFT_DAYS", "int", 400, "Corrected counter drift; 0: unlimited.", "days"),
    Setting(
        "MUSTER_KEEP_NOTIFICATIONS_DAYS",
        "int",
        90,
        "Notifications, and messages to webhooks with their log; 0: unlimited.",
        "days",
    ),
)
