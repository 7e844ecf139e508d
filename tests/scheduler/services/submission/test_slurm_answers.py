"""The same scripts as a real Slurm was given: every difference between its answer and ours is known, with its reason."""

from __future__ import annotations

from collections import Counter

import pytest
from pytest_django.fixtures import Settings

from tests.scheduler.services.submission.slurm_answers import a_world, cases, compare
from tests.scheduler.services.submission.slurm_differences import ABSENT, DIFFERENT

pytestmark = pytest.mark.django_db


def test_every_difference_from_slurm_is_known(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    settings.MUSTER_STORAGE, settings.CHECKPOINT_PATH = "file:///somewhere", ""
    settings.MUSTER_MAX_ARRAY_SIZE = 1001
    every = cases()
    world = a_world()
    verdicts = {case["id"]: compare(world, case) for case in every}

    ends = {end: {name for name, one in verdicts.items() if one.end == end} for end in ("agrees", "absent", "differs")}
    core = {case["id"] for case in every if case.get("core")}
    with capsys.disabled():
        print()
        for name, one in sorted(verdicts.items()):
            if one.end != "agrees" and (name not in ABSENT and name not in DIFFERENT):
                print(f"{'*' if name in core else ' '} {one.end:8} {name}: {','.join(one.about)} {'LESS ' if one.less else ''}{one.said[:230]}")
        print({end: (len(names & core), len(names)) for end, names in ends.items()})
    assert {name: verdicts[name].about for name in ends["differs"] - DIFFERENT.keys()} == {}
    assert ends["absent"] == ABSENT.keys()
    assert ends["differs"] == DIFFERENT.keys()
    assert not [name for name, one in verdicts.items() if one.less and name not in DIFFERENT]
    assert Counter(one.end for one in verdicts.values())["agrees"] >= 500
