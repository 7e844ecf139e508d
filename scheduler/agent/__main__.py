"""`python -m scheduler.agent`."""

from __future__ import annotations

import sys

from scheduler.agent.main import main

sys.exit(main(sys.argv[1:]))
