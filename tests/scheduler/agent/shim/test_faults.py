"""What fails in the shim costs no task its supervisor: the node says what it is, and takes no tasks until it works."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.agent.isolation.cells import Cells
from scheduler.agent.isolation.means import Files, Means
from scheduler.agent.protocol import NOT_ISOLATED
from scheduler.agent.shim.shim import Shim
from scheduler.state.lifecycle.verdicts import TaskEnd
from tests.support.agents import wait_for
from tests.support.shims import LoneShim

#: Other means than an empty shim has; they need a folder.
CONFINED = Means(landlock=1, files=Files(readable=("/",), writable=("/",)))


def test_means_that_cannot_be_used_change_nothing_and_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Cells(tmp_path, lambda path: None)
    before, usable = made.means, Path.mkdir

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    made.use(CONFINED)
    assert made.means is before
    assert made.fault == "jobs cannot be isolated: [Errno 28] No space left on device"
    (due,) = made.due_at()
    made.retry(due - 0.1)
    assert made.means is before

    monkeypatch.setattr(Path, "mkdir", usable)
    made.retry(due + 0.1)

    assert (made.means, made.fault, list(made.due_at())) == (CONFINED, "", [])


def test_a_node_that_cannot_isolate_keeps_its_tasks_says_so_and_starts_none(tmp_path: Path) -> None:
    """`private` is a file: the folder that the means need cannot be made."""
    shim = LoneShim(tmp_path)
    try:
        shim.link.start()
        shim.start("1-1", "exec sleep 1000")
        shim.wait("1-1", "running")
        (tmp_path / "private").write_text("")

        shim.link.means = CONFINED
        shim.link._send({"op": "isolate", "means": CONFINED.as_json()})
        wait_for(lambda: shim.link.fault)
        shim.start("2-1", "true")

        refused = shim.wait("2-1")
        assert (refused["lost"], refused["text"], refused["exit_code"]) == (True, NOT_ISOLATED, None)
        assert not TaskEnd(rank=0, node="n1", state="lost", text=NOT_ISOLATED).may_have_begun
        assert "File exists" in shim.link.fault or "Not a directory" in shim.link.fault
        pid = shim.pid
        (tmp_path / "private").unlink()
        wait_for(lambda: not shim.link.fault)
        assert (shim.records["1-1"]["state"], shim.pid) == ("running", pid)
    finally:
        shim.clean_up()


def _raise(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _break_guards(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    monkeypatch.setattr(shim.guards, "poll", _raise)
    return lambda: shim._try("looking after guards", shim.guards.poll)


def _break_journal(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    monkeypatch.setattr(shim.store, "compact", _raise)
    return lambda: shim._try("the journal", shim.store.compact)


@pytest.mark.parametrize("broken", [_break_guards, _break_journal])
def test_an_error_of_a_step_is_a_fault_until_the_step_works(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[Shim, pytest.MonkeyPatch], Callable[[], object]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    shim = Shim(tmp_path)
    with monkeypatch.context() as inside:
        step = broken(shim, inside)
        step()
        step()
        assert shim.agent._fault().endswith("[Errno 24] Too many open files")
        assert 0.05 <= shim._seconds_to_next_deadline() <= 1.0
        assert len(capfd.readouterr().err.splitlines()) == 1

    step = broken(shim, monkeypatch)
    monkeypatch.undo()
    step()

    assert shim.agent._fault() == ""


def test_a_command_that_fails_is_written_to_the_log_and_the_next_one_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shim = Shim(tmp_path)
    monkeypatch.setattr(shim.folders, "discard", _raise)

    shim.do_command({"op": "discard", "names": ["1-1-0-1-1"]})
    shim.do_command({"op": "lease", "fence_seconds": 5.0})

    assert "command discard: [Errno 24]" in capfd.readouterr().err
    assert shim.deadlines.fence_at is not None
    assert shim.agent._fault() == ""
