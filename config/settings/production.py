"""What a server on a network uses: secrets and names come from the environment, or it does not start."""

from __future__ import annotations

import os
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from config.settings.base import *
from config.settings.declared import read


def needed(name: str, meaning: str) -> Any:
    """The value of a variable that has no safe default."""
    if name not in os.environ or not (value := read(name)):
        raise ImproperlyConfigured(
            f"{name} is not set: {meaning}. Production settings have no default for it."
        )
    return str(value)


SECRET_KEY = needed(
    "MUSTER_SECRET_KEY", "at least 50 random characters, for instance from `openssl rand -base64 48`"
)
ALLOWED_HOSTS = [
    host.strip() for host in needed("MUSTER_ALLOWED_HOSTS", "the host names people use, separated by commas")
]
needed("DATABASE_URL", "where PostgreSQL is, as postgres://user:password@host:5432/name")
needed("REDIS_URL", "where Redis or Valkey is, as redis://:password@host:6379/0")

DEMO_LOGINS_ALLOWED = False  # whatever accounts the database has

SECURE_SSL_REDIRECT = read("MUSTER_SSL_REDIRECT")
SECURE_REDIRECT_EXEMPT = [r"^(livez|readyz|healthz|metrics)$"]  # probes come from inside, without TLS
SECURE_HSTS_SECONDS = read("MUSTER_HSTS_SECONDS")
SECURE_HSTS_INCLUDE_SUBDOMAINS = read("MUSTER_HSTS_SUBDOMAINS")
SECURE_HSTS_PRELOAD = read("MUSTER_HSTS_PRELOAD")
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True

STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
