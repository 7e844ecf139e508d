"""Alerts, notifications, mail and webhooks."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import HOUR, Setting

SETTINGS: Final = (
    Setting(
        "MUSTER_ALERT_DIGEST_SECONDS",
        "int",
        6 * HOUR,
        "Shortest time between two notices to one person.",
        "s",
    ),
    Setting(
        "MUSTER_ALERT_MAIL_FROM",
        "str",
        "",
        "Sender of mails. Empty: no mail, notifications in the portal.",
    ),
    Setting(
        "MUSTER_PUBLIC_URL",
        "str",
        "",
        "Address of the portal for links in mails. Empty: no links.",
        form="url",
    ),
    Setting(
        "MUSTER_NOTIFY_SECONDS",
        "float",
        5.0,
        "Interval of reading events for notifications.",
        "s",
        least=0.1,
        most=3600,
    ),
    Setting(
        "MUSTER_NOTIFICATION_BURST_SECONDS",
        "int",
        120,
        "Jobs of one project and kind within this time of each other make one notification.",
        "s",
    ),
    Setting("MUSTER_MAIL_WAIT_SECONDS", "int", 30, "Wait of a mail for the rest of its burst.", "s"),
    Setting(
        "MUSTER_MAIL_AGAIN_SECONDS",
        "int",
        HOUR,
        "Shortest time between two mails of one notification.",
        "s",
    ),
    Setting("MUSTER_WEBHOOK_WAIT_SECONDS", "int", 2, "Wait of a webhook for the rest of its burst.", "s"),
    Setting(
        "MUSTER_WEBHOOK_KEY",
        "str",
        "",
        "Secrets of webhooks are derived from it. Empty: from the secret key.",
        secret=True,
    ),
    Setting(
        "MUSTER_WEBHOOK_OLD_KEYS",
        "list",
        [],
        "Keys that were replaced; webhooks sign with them until their secret is rotated.",
        secret=True,
    ),
    Setting(
        "MUSTER_WEBHOOK_NETWORKS",
        "list",
        [],
        "Networks that are not public and that webhooks may reach all the same, by http too.",
        form="network",
    ),
    Setting(
        "MUSTER_WEBHOOK_PORTS", "list", ["443", "80", "8443"], "Ports that webhooks may reach.", form="port"
    ),
    Setting("EMAIL_HOST", "str", "localhost", "Mail server."),
    Setting("EMAIL_PORT", "int", 25, "Port of the mail server.", least=1, most=65_535),
    Setting("EMAIL_HOST_USER", "str", "", "User at the mail server."),
    Setting("EMAIL_HOST_PASSWORD", "str", "", "Password at the mail server.", secret=True),
    Setting("EMAIL_USE_TLS", "bool", False, "STARTTLS to the mail server."),
)
