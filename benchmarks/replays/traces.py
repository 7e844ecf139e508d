"""Where the public traces are: MUSTER_DATA, or `../shared/data` beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks import ROOT
from benchmarks.registry import NotMeasuredError


class NoTracesError(NotMeasuredError, LookupError):
    """The traces are not on this machine; the message says where they were looked for."""


def traces_root() -> Path:
    """Where traces are looked for, whether anything is there or not."""
    given = os.environ.get("MUSTER_DATA")
    return Path(given) if given else ROOT.parent / "shared" / "data"


def trace_folder(name: str) -> Path:
    """The folder of one trace."""
    base = traces_root()
    if not (base / name).is_dir():
        raise NoTracesError(f"{name} is not in {base}: set MUSTER_DATA to the folder of the public traces")
    return base / name
