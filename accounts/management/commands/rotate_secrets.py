"""Encrypts secrets anew with the current key; the exit code is the contract."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from accounts.services.secrets import reencrypt_all


class Command(BaseCommand):
    help = (
        "Encrypts every secret with the first key of MUSTER_STORAGE_KEYS, or with the secret key where there is none. "
        "Exits 0 when all are, else 1 and names those whose key is missing. The old key can be removed after that, as "
        "far as no object of the storage needs it. May be run again, and while the portal works."
    )
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        found = reencrypt_all()
        self.stdout.write(
            f"Encrypted {found.done} secrets anew; {found.current} had the current key already."
        )
        for line in found.failed:
            self.stderr.write(f"Cannot be decrypted: {line}")
        if found.failed:
            sys.exit(1)
