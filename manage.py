#!/usr/bin/env python3
"""The command line of Muster: every Django command, and `up`, which runs the whole portal."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.development")
    from config.settings.at_start import require_settings
    from config.up.commands import servers_for

    require_settings()
    if sys.argv[1:2] == ["up"]:
        # The supervisor runs without Django: it must stay small, and it starts the database Django needs.
        from config.up import main as up

        sys.exit(up.main(sys.argv[2:]))
    # What a start loads is no garbage: to look through it again and again takes a tenth of the start's processor time.
    gc.set_threshold(50_000, 20, 20)
    with servers_for(sys.argv[1:]):
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line

        try:
            execute_from_command_line(sys.argv)
        except (
            ImproperlyConfigured
        ) as error:  # settings that are wrong together, or a key of the wrong length
            sys.exit(str(error))


if __name__ == "__main__":
    main()
