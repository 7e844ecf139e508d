"""Published traces: where they are, and a loud skip where they are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.replays.traces import traces_root


def trace(*parts: str) -> Path:
    """A file below MUSTER_DATA (default: ../shared/data where that exists); skips the test without it.

    With MUSTER_REQUIRE_TRACES the lack of it is a failure.
    """
    path = traces_root().joinpath(*parts)
    if not path.exists():
        why = f"the published trace {path} is not there: set MUSTER_DATA to where the traces are"
        if os.environ.get("MUSTER_REQUIRE_TRACES"):
            pytest.fail(why)
        pytest.skip(f"NOT PROVED HERE: {why}")
    return path
