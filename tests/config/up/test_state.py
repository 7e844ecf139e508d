"""The state folder: one owner, private secrets, and no belief in what a dead owner wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from config.up.ports import PortInUseError, free_port, listen
from config.up.state import Servers, StateFolder, reachable_by_all


def a_state(path: Path, monkeypatch) -> StateFolder:
    monkeypatch.setenv("MUSTER_STATE", str(path))
    return StateFolder.find()


def test_only_one_may_hold_the_lock(tmp_path: Path, monkeypatch) -> None:
    first, second = a_state(tmp_path, monkeypatch), a_state(tmp_path, monkeypatch)

    assert first.take_lock()
    assert not second.take_lock()

    first.release_lock()

    assert second.take_lock()
    second.release_lock()


def test_servers_of_a_dead_owner_are_not_believed(tmp_path: Path, monkeypatch) -> None:
    state = a_state(tmp_path, monkeypatch)
    state.publish(
        Servers(database_url="postgres://x", redis_url="redis://x", owner_pid=os.getpid(), command="up")
    )

    assert state.running() is None


def test_servers_of_a_living_owner_are_found_by_others(tmp_path: Path, monkeypatch) -> None:
    owner, other = a_state(tmp_path, monkeypatch), a_state(tmp_path, monkeypatch)
    said = Servers(database_url="postgres://x", redis_url="redis://x", owner_pid=os.getpid(), command="up")
    assert owner.take_lock()
    owner.publish(said)

    assert other.running() == said
    assert (tmp_path / "servers.json").stat().st_mode & 0o777 == 0o600
    owner.release_lock()


def test_an_owner_waits_for_visitors(tmp_path: Path, monkeypatch) -> None:
    owner, visitor = a_state(tmp_path, monkeypatch), a_state(tmp_path, monkeypatch)

    with visitor.visiting():
        assert not owner.wait_for_visitors(0)
    assert owner.wait_for_visitors(0)


def test_secrets_differ_and_are_private(tmp_path: Path, monkeypatch) -> None:
    state = a_state(tmp_path, monkeypatch)

    one, two = state.secret("one"), state.secret("two")

    assert one != two
    assert state.secret("one") == one
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("one", "two")} == {0o600}


def test_a_port_that_is_taken_is_not_chosen_again() -> None:
    port = free_port()
    with listen("127.0.0.1", port):
        assert free_port(port) != port
        with pytest.raises(PortInUseError, match=str(port)):
            listen("127.0.0.1", port)


def test_reachable_looks_at_every_folder_on_the_way(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "open"
    inner.mkdir(parents=True)
    inner.chmod(0o755)
    inner.parent.chmod(0o700)

    assert reachable_by_all(Path("/usr/bin"))
    assert not reachable_by_all(inner)
