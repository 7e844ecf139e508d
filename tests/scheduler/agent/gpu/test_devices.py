"""What a GPU is called."""

from __future__ import annotations

import pytest

from scheduler.agent.gpu.devices import short_model


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla T4", "T4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce GTX", "GeForce GTX"),
    ],
)
def test_models_get_the_word_people_ask_for(name: str, model: str) -> None:
    assert short_model(name) == model
