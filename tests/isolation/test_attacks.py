"""What a stranger's job tries on a node: refused, with whatever means the node has."""

from __future__ import annotations

import os
import re

import pytest

from scheduler.agent import processes
from scheduler.agent.isolation.means import SCOPING_ABI
from tests.isolation.conftest import AS_ROOT, ATTACK, PORTALS_SECRET, VICTIMS_SECRET, Scene

pytestmark = pytest.mark.either

ATTEMPTS = re.findall(r'^    "([^"]+)": ', ATTACK, re.MULTILINE)
#: Folders of which a job may see the way to its own.
ITS_OWN_WAY = {"the names of other tasks": "GOT ", "the portal's folder": "GOT agents"}


SIGNALS = ("finding another by a signal", "ending another")


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_is_refused(scene: Scene, attempt: str) -> None:
    said, means = scene.said[attempt], scene.means
    if means.landlock < SCOPING_ABI and attempt == "an abstract socket":
        pytest.skip(
            "Landlock of this kernel has no scopes (Linux 6.12): no means keeps abstract sockets apart"
        )
    if attempt in SIGNALS and not means.facts()["people"]:
        pytest.skip(
            "Landlock of this kernel has no scopes (Linux 6.12): the node says that people are not apart"
        )

    assert VICTIMS_SECRET not in said
    assert PORTALS_SECRET not in said
    assert said.startswith("refused") or said == ITS_OWN_WAY.get(attempt), said


def test_the_victim_goes_on(scene: Scene) -> None:
    if not scene.means.facts()["people"]:
        pytest.skip("the node says that people are not apart")
    victim = scene.shim.records["1-1"]

    assert victim["state"] == "running"
    assert processes.is_running(victim["pid"], victim["start_ticks"])


def test_nothing_was_done_for_the_attacker_outside(scene: Scene) -> None:
    assert list(scene.outside.iterdir()) == []
    assert "9-1" not in scene.shim.records
    assert not os.path.exists("/tmp/mine")


def test_a_job_has_what_it_needs(scene: Scene) -> None:
    assert scene.said["tmp"] == "written"
    assert (scene.shim.state / "tasks/2-1/work/mine").read_text() == "mine"
    assert (scene.said["umask"], scene.said["session"]) == ("0o77", "True")


@pytest.mark.skipif(not AS_ROOT, reason="only root gives each person an account")
def test_each_person_has_an_account_without_groups(scene: Scene) -> None:
    uid = int(scene.said["account"])
    victims = os.stat(scene.shim.state / "tasks/1-1/work/secret").st_uid

    assert uid >= 1_900_000_000
    assert victims >= 1_900_000_000
    assert victims != uid
    assert scene.said["groups"] == "[]"
