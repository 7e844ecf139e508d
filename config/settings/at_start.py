"""What a program does about settings before it does anything else."""

from __future__ import annotations

import sys

from config.settings.declared import mistyped, problems


def require_settings() -> None:
    """End this process where a setting has a value that is not allowed, with a sentence for each of them."""
    for name, meant in mistyped().items():
        sys.stderr.write(f"{name} is no setting and has no effect. Do you mean {meant}?\n")
    if found := problems():
        sys.exit("\n".join(found))
