"""What `make run` uses: this machine only, a secret key made once, demo data when asked for."""

from __future__ import annotations

from config.settings.base import *
from config.settings.base import (
    DATABASES,
    MUSTER_AUDIT_CHECKPOINT_FILE,
    MUSTER_AUDIT_KEY,
    MUSTER_AUDIT_OLD_KEYS,
    MUSTER_STORAGE,
)
from config.settings.declared import read
from config.up.state import StateFolder

DEBUG = read("MUSTER_DEBUG")
_state = StateFolder.find()
SECRET_KEY = read("MUSTER_SECRET_KEY", "") or _state.secret("secret_key")
if not MUSTER_AUDIT_KEY:
    MUSTER_AUDIT_KEY = _state.secret("audit_key")
    # Rows of earlier versions were signed with it.
    MUSTER_AUDIT_OLD_KEYS = [*MUSTER_AUDIT_OLD_KEYS, SECRET_KEY]
if not MUSTER_AUDIT_CHECKPOINT_FILE:
    # Another database has another trail, and so another file.
    _place = (DATABASES["default"].get("HOST", ""), DATABASES["default"]["NAME"])
    _other = "" if _place == ("127.0.0.1", "muster") else "-" + "-".join(_place).replace("/", "-")
    MUSTER_AUDIT_CHECKPOINT_FILE = str(_state.path / f"audit-checkpoints{_other}")
if not MUSTER_STORAGE:
    MUSTER_STORAGE = (_state.path / "storage").as_uri()
ALLOWED_HOSTS = read("MUSTER_ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
INTERNAL_IPS = ["127.0.0.1"]

# Static files straight from where they are written; production collects them once. Looked up at each request:
# otherwise their lengths are those of the start, and a file that grows while the server runs breaks its pages.
# Browsers ask again each time, so that a page never meets the stylesheet of yesterday.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = True
WHITENOISE_MAX_AGE = 0
STATIC_ROOT = None  # type: ignore[assignment]  # no folder: files come from where they are written

MUSTER_METRICS_TOKEN = read("MUSTER_METRICS_TOKEN") or StateFolder.find().secret("metrics_token")

MUSTER_DEMO = read("MUSTER_DEMO")
