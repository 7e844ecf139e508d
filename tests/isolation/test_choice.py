"""What an agent chooses by what the site says and the machine offers, and what is written for it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scheduler.agent.isolation.cgroups import Group
from scheduler.agent.isolation.landlock import around
from scheduler.agent.isolation.means import Means
from scheduler.agent.isolation.probe import OFF, BadSite, Site, choose
from scheduler.agent.isolation.project_quotas import Use
from scheduler.services.cluster.isolation import labels_by, level_of, read_isolation
from scheduler.services.execution.assignments import grace_of

pytestmark = pytest.mark.either
MIB = 1024 * 1024


def test_what_is_hidden_in_a_readable_folder_is_left_out(tmp_path: Path) -> None:
    for name in ("a/secret/key", "a/open", "b"):
        (tmp_path / name).mkdir(parents=True)
    hidden = [str(tmp_path / "a/secret")]

    assert sorted(around(str(tmp_path), hidden)) == [str(tmp_path / "a/open"), str(tmp_path / "b")]
    assert list(around(str(tmp_path / "a/secret/key"), hidden)) == []


def test_means_travel_as_json(tmp_path: Path) -> None:
    means = choose(Site(writable=(str(tmp_path / "scratch"),)), tmp_path / "state")

    assert Means.of(json.loads(json.dumps(means.as_json()))) == means


def test_a_writable_folder_that_holds_the_agents_state_is_refused_with_a_reason(tmp_path: Path) -> None:
    means = choose(Site(writable=(str(tmp_path),)), tmp_path / "state")

    assert means.files.writable == ()
    assert f"Jobs may not write {tmp_path}" in means.missing[0]


def test_nothing_is_isolated_where_the_site_says_so_and_the_node_says_that(tmp_path: Path) -> None:
    facts = choose(Site(isolation=OFF), tmp_path).facts()

    assert level_of(read_isolation(facts)) == "none"
    assert facts["missing"] == ["Nothing is isolated: --isolation off."]


def test_a_path_of_the_site_is_absolute(tmp_path: Path) -> None:
    with pytest.raises(BadSite, match="is not an absolute path"):
        choose(Site(hidden=("secrets",)), tmp_path)


@pytest.mark.parametrize("said", [None, 3, {"files": 1}, {"files": "yes", "people": True}])
def test_what_cannot_be_read_makes_no_node_look_safer(said: object) -> None:
    assert level_of(read_isolation(said)) == "none"


def test_amounts_in_the_words_of_version_2(tmp_path: Path) -> None:
    for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.weight", "cpu.max"):
        (tmp_path / name).write_text("")
    (tmp_path / "memory.events").write_text("low 0\noom_kill 0\n")
    group = Group(2, dict.fromkeys(("memory", "pids", "cpu"), str(tmp_path)))

    group.bound({"memory_limit_mib": 64, "process_limit": 10, "cpu_millis": 1000, "cpu_limit_millis": 1500})

    assert (tmp_path / "memory.max").read_text() == str(72 * 2**20)
    assert (tmp_path / "pids.max").read_text() == "11"
    assert (tmp_path / "cpu.max").read_text() == "150000 100000"
    assert (tmp_path / "cpu.weight").read_text() == "39"
    assert not group.ran_out_of_memory()
    (tmp_path / "memory.events").write_text("low 0\noom_kill 1\n")
    assert group.ran_out_of_memory()
    os.truncate(tmp_path / "memory.max", 0)
    group.bound({})
    assert (tmp_path / "memory.max").read_text() == "max"


def test_without_project_quotas_the_disk_is_measured_and_the_node_says_why(tmp_path: Path) -> None:
    means = choose(Site(), tmp_path)
    if means.disk:
        pytest.skip(f"this {means.disk} has project quotas: see test_disk.py")

    (why,) = (text for text in means.missing if text.startswith("What a job fills of the disk is measured"))
    assert ("project quotas" if os.geteuid() == 0 else "only an agent that is root") in why
    assert means.facts()["disk"] is False
    assert labels_by(read_isolation(means.facts()))["disk-limit"] == "measured"
    assert not (tmp_path / "quota-try").exists()


def test_the_disk_counts_for_no_level_and_is_asked_for_by_a_label() -> None:
    all_else = {"files": True, "people": True, "processes": True, "amounts": True}

    assert labels_by(read_isolation(all_else)) == {"isolation": "strict", "disk-limit": "measured"}
    assert labels_by(read_isolation({"disk": True})) == {"isolation": "none", "disk-limit": "kernel"}
    assert labels_by(read_isolation({"disk": "yes"}))["disk-limit"] == "measured"


@pytest.mark.parametrize(
    ("used", "files", "limit", "full"),
    [
        (3 * MIB, 9, 4 * MIB, False),
        (4 * MIB - 1000, 9, 4 * MIB, True),
        (0, 1000, 4 * MIB, True),
        (900_000, 9, MIB, False),
        (950_000, 9, MIB, True),
        (10**12, 10**9, 0, False),
    ],
)
def test_a_disk_is_full_when_nearly_nothing_more_fits(used: int, files: int, limit: int, full: bool) -> None:
    assert Use(used, files, limit, 1000 if limit else 0).is_full is full


def test_the_grace_after_a_time_limit_is_no_longer_than_the_limit() -> None:
    assert [grace_of(seconds) for seconds in (None, 3, 20, 3600)] == [60, 5, 20, 60]
