"""Delays after failed attempts to sign in."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import HOUR, Setting

SETTINGS: Final = (
    Setting(
        "MUSTER_SIGN_IN_TRIES",
        "int",
        5,
        "Failed attempts without delay, per username and address.",
        "attempts",
        least=1,
    ),
    Setting(
        "MUSTER_SIGN_IN_TRIES_OF_ADDRESS",
        "int",
        20,
        "Failed attempts without delay, per address.",
        "attempts",
        least=1,
    ),
    Setting(
        "MUSTER_SIGN_IN_TRIES_OF_NAME",
        "int",
        15,
        "Failed attempts without delay, per username.",
        "attempts",
        least=1,
    ),
    Setting(
        "MUSTER_SIGN_IN_DELAY_SECONDS",
        "float",
        1.0,
        "First delay; each failed attempt doubles it.",
        "s",
    ),
    Setting("MUSTER_SIGN_IN_MOST_DELAY_SECONDS", "float", 900.0, "Longest delay per address.", "s"),
    Setting(
        "MUSTER_SIGN_IN_MOST_DELAY_OF_NAME_SECONDS",
        "float",
        60.0,
        "Longest delay per username from other addresses.",
        "s",
    ),
    Setting(
        "MUSTER_SIGN_IN_FORGET_SECONDS",
        "int",
        HOUR,
        "Time without an attempt after which failed attempts are forgotten.",
        "s",
    ),
)
