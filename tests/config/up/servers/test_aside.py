"""What the supervisor has done aside, it does not keep in memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from config.up.servers.aside import aside
from config.up.state import StateError
from tests.support.stack import ROOT

HEAVY = ("psycopg", "redis", "django", "celery", "numpy")
LOADS = f"""
import sys
import config.up.main
from config.up.servers.aside import aside
def work():
    import psycopg
    return True
assert aside(work)
assert not aside(lambda: False)
print([name for name in {HEAVY!r} if name in sys.modules])
"""


def test_the_supervisor_loads_none_of_what_it_starts() -> None:
    said = subprocess.run(
        [sys.executable, "-c", LOADS], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (said.stdout, said.stderr) == ("[]\n", "")


def test_an_error_of_work_aside_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> bool:
        raise StateError("no room for roles")

    monkeypatch.delitem(sys.modules, "psycopg")

    with pytest.raises(StateError, match="no room for roles"):
        aside(refuses)
