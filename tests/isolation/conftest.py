"""A shim that isolates by each set of means that this account can have, a victim on it, and an attacker beside it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.agent.isolation.cgroups import GroupTree
from scheduler.agent.isolation.means import NO_NAMESPACES, Groups, Means
from scheduler.agent.isolation.namespaces import closed_to_others
from scheduler.agent.isolation.probe import AUTO, FILES_ONLY, Site, choose
from scheduler.agent.secret_values.memory import claim
from tests.support.agents import wait_for
from tests.support.shims import LoneShim

AS_ROOT = os.geteuid() == 0
#: What an agent may have, by who runs it.
KINDS = ["all", "without-groups", "without-namespaces"] if AS_ROOT else ["all", "landlock-alone"]
ATTACK = Path(__file__).with_name("attack.py").read_text()
VICTIMS_SECRET = "the-victims-secret"
PORTALS_SECRET = "the-portals-secret"


def means_of(kind: str, state: Path, *hidden: Path) -> Means:
    """What an agent with this state folder would choose, without what the kind leaves out."""
    site = Site(isolation=FILES_ONLY if kind == "landlock-alone" else AUTO, hidden=tuple(map(str, hidden)))
    means = choose(site, state)
    if not means.landlock:
        pytest.skip("this kernel has no Landlock")
    if kind == "without-groups":
        return replace(means, groups=Groups())
    if kind == "without-namespaces":
        memory = claim(state, jobs_see_shared_memory=False, passable=True)
        return replace(means, namespaces=NO_NAMESPACES, groups=Groups(), memory=memory)
    return means


@dataclass
class Scene:
    """A node of a portal: `said` is what came of each attempt of the attacker."""

    shim: LoneShim
    means: Means
    portal: Path
    said: dict[str, str]
    outside: Path


def remove_groups(means: Means) -> None:
    """Take away the control groups of guards that the end of a test has killed."""

    def removed() -> bool:
        GroupTree(means.groups)
        for folder in means.groups.folders.values():
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    wait_for(removed)


def open_up(folder: Path) -> None:
    """Let other accounts pass through the folders that pytest closes to them, as a site's folders are."""
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)


@pytest.fixture(scope="session", params=KINDS)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    portal = tmp_path_factory.mktemp("portal")
    state = portal / "agents" / "node-1"
    state.mkdir(parents=True)
    for name in ("secret_key", "postgres_password", "servers.json"):
        (portal / name).write_text(PORTALS_SECRET)
    (state / "identity.json").write_text(PORTALS_SECRET)
    outside = tmp_path_factory.mktemp("outside")
    means = means_of(request.param, state, portal)
    if not means.namespaces:
        open_up(state / "tasks")
    shim = LoneShim(state, means)
    shim.link.start()
    # A socket without a name in any folder, as some programs have.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0muster-test-{os.getpid()}")
    listener.listen()
    try:
        yield Scene(shim, means, portal, _attack(shim, portal, outside), outside)
    finally:
        listener.close()
        shim.clean_up()
        remove_groups(means)


def python_for(shim: LoneShim) -> str:
    """An interpreter that jobs can start: without a view of their own they do not reach one in a closed folder."""
    assert shim.means is not None
    own = os.path.realpath(sys.executable)
    if shim.means.namespaces or not shim.means.people.accounts or not closed_to_others([own]):
        return sys.executable
    if (found := shutil.which("python3", path="/usr/bin:/usr/local/bin")) is None:
        pytest.skip("the only interpreter is in a folder that is closed to other accounts")
    return found


def _attack(shim: LoneShim, portal: Path, outside: Path) -> dict[str, str]:
    victim = f"echo {VICTIMS_SECRET} > secret; echo {VICTIMS_SECRET}; echo up > up; exec sleep 1000"
    shim.start("1-1", victim, user="bob", env={"PATH": os.defpath, "SECRET": VICTIMS_SECRET})
    pid = shim.wait("1-1", "running")["pid"]
    wait_for(lambda: (shim.state / "tasks/1-1/work/up").exists())
    about = {
        "pid": pid, "portal": str(portal), "state": str(shim.state), "outside": str(outside),
        "abstract": f"\0muster-test-{os.getpid()}",
    }  # fmt: skip
    argv = [python_for(shim), "-S", "-I", "-c", ATTACK, json.dumps(about)]
    shim.start("2-1", "", user="alice", argv=argv)
    record = shim.wait("2-1")
    said = (shim.state / "tasks/2-1/stdout").read_text()
    assert record["exit_code"] == 0, (record, said, (shim.state / "tasks/2-1/stderr").read_text())
    found: dict[str, Any] = json.loads(said)
    return {name: str(text) for name, text in found.items()}
