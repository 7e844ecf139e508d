"""A module that no fork server may load."""

from __future__ import annotations

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
