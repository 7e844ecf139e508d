"""Benchmarks: what Muster costs, measured and kept beside its bars."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
