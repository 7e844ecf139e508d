"""What a site lists for jobs is there for them, also in a folder that is otherwise private."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.agent.isolation.probe import Site, choose
from tests.isolation.conftest import open_up, remove_groups
from tests.support.shims import LoneShim

pytestmark = pytest.mark.either


def test_jobs_read_and_write_what_the_site_lists_within_tmp(tmp_path: Path) -> None:
    """pytest's own folder is in /tmp, of which each person has a private one."""
    data, scratch, state = (tmp_path / name for name in ("data", "scratch", "state"))
    for folder in (data, scratch, state):
        folder.mkdir()
    (data / "input").write_text("42\n")
    scratch.chmod(0o777)
    open_up(data)
    means = choose(Site(readable=(str(data),), writable=(str(scratch),)), state)
    if not means.landlock:
        pytest.skip("this kernel has no Landlock")
    shim = LoneShim(state, means)
    shim.link.start()
    try:
        shim.start("1-1", f"cp {data}/input {scratch}/output; echo no > {data}/more", user="alice")
        shim.wait("1-1")
        shim.start("2-1", f"cat {scratch}/output", user="alice")  # of the next task of the same person too
        record = shim.wait("2-1")

        assert (record["exit_code"], (state / "tasks/2-1/stdout").read_text()) == (0, "42\n")
        assert (scratch / "output").read_text() == "42\n"
        assert not (data / "more").exists()
    finally:
        shim.clean_up()
        remove_groups(means)
