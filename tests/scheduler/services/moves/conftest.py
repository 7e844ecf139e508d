"""The lab in which jobs are moved."""

from __future__ import annotations

import pytest

from tests.scheduler.services.moves.lab import Lab


@pytest.fixture
def lab(db: None) -> Lab:
    return Lab()
