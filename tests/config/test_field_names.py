"""Admin pages name fields in words, with units, and no migration follows from that."""

from __future__ import annotations

import pytest

from config.field_names import readable
from quotas.models import Quota
from scheduler.models import Device, Job


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpu_millis", "GPU (thousandths)"),
        ("memory_used_mib", "memory used (MiB)"),
        ("temperature_c", "temperature (°C)"),
        ("time_limit_seconds", "time limit (s)"),
        ("uuid", "UUID"),
        ("seconds", "seconds"),
        ("held_at", "held at"),
    ],
)
def test_names_are_words_with_units(name: str, words: str) -> None:
    assert readable(name) == words


def test_fields_of_models_have_them() -> None:
    assert str(Device._meta.get_field("power_watts").verbose_name) == "power (W)"
    assert str(Job._meta.get_field("epoch").verbose_name) == "epoch"
    assert Quota._meta.get_field("gpu_model").deconstruct()[3].get("verbose_name") is None
