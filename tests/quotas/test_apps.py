"""Settings that cannot work are told before anything starts."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError


def test_the_default_provider_passes() -> None:
    call_command("check", "quotas")


@pytest.mark.parametrize(
    ("name", "words"), [("slurm", "No connection to Slurm"), ("magic", "'magic' is not.*Available: local")]
)
def test_a_provider_that_is_not_there_stops_the_start(
    settings, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    settings.QUOTA_PROVIDER = name

    with pytest.raises(SystemCheckError, match=f"(?s){words}"):
        call_command("check", "quotas")
