"""What the test suite uses: the plugin gives the servers; nothing here is slow or secret."""

from __future__ import annotations

from config.settings.base import *
from config.settings.base import CACHES

SECRET_KEY = "a key for tests, which protects nothing at all"  # noqa: S105
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # 20 times faster suites
WHITENOISE_USE_FINDERS = True
STATIC_ROOT = None  # type: ignore[assignment]
WHITENOISE_AUTOREFRESH = True  # no walk over every static file at each client's start

# What a busy machine answers late is not a cache that is away.
CACHES["default"]["OPTIONS"] = {"socket_connect_timeout": 10, "socket_timeout": 10}

CELERY_TASK_ALWAYS_EAGER = False
MUSTER_API_RATE = 0.0  # suites ask faster than anybody
# Tests put the database back all the time; those about checkpoints name a file of their own.
MUSTER_AUDIT_CHECKPOINT_FILE = ""
