"""The example package under docs/ installs, is found by its entry points, and decides."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.placement.plugins import tell_scheduled
from scheduler.services.planning.cycles import PLUGIN_GROUP, installed_plugins
from tests.support.builders import a_job, a_node, a_policy, a_world

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "muster-plugin-example"
LABEL = "example.org/inlet-celsius"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package installed by pip into a folder of its own on the path.

    Offline: from its source where the build backend is here, else from a wheel put together by hand.
    """
    source, target = tmp_path / "source", tmp_path / "site"
    shutil.copytree(EXAMPLE, source)
    can_build = all(importlib.util.find_spec(name) for name in ("setuptools", "wheel"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
               "--no-build-isolation", "--target", str(target)]  # fmt: skip
    package = source if can_build else a_wheel(source, tmp_path)
    done = subprocess.run([*command, str(package)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(sys, "path", [str(target), *sys.path])
    importlib.invalidate_caches()
    # A process looks for plugins once: whoever looked before must not decide for us, nor we for who comes after.
    installed_plugins.cache_clear()
    yield target
    installed_plugins.cache_clear()
    for name in [name for name in sys.modules if name.startswith("muster_plugin_example")]:
        del sys.modules[name]


def a_wheel(source: Path, folder: Path) -> Path:
    """What the build backend would make: the modules, and what pyproject.toml says of them."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    module, version = project["name"].replace("-", "_"), project["version"]
    about = f"{module}-{version}.dist-info"
    points = [f"{name} = {value}" for name, value in project["entry-points"][PLUGIN_GROUP].items()]
    files = {
        str(path.relative_to(source)): path.read_text() for path in sorted((source / module).glob("*.py"))
    }
    files[f"{about}/METADATA"] = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n"
    files[f"{about}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{about}/entry_points.txt"] = "\n".join([f"[{PLUGIN_GROUP}]", *points, ""])
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def test_a_package_that_is_installed_filters_scores_orders_and_is_told(installed: Path) -> None:
    plugins = installed_plugins()
    world = a_world(
        nodes=[
            a_node("hot", gpus=8, labels={LABEL: "33"}),
            a_node("warm", gpus=8, labels={LABEL: "24"}),
            a_node("cool", gpus=8, labels={LABEL: "16"}),
        ],
        pending=[
            a_job("small", gpus=1),
            a_job("large", gpus=8),
            a_job("wide", tasks=2, gpus=8, submitted=0),
        ],
    )

    plan = plan_cycle(
        world.snapshot, a_policy(plugins=("cool-racks",), weights=(("cool-racks", 100),)), plugins
    )
    tell_scheduled([plugins["cool-racks"]], plan.starts)

    # Two tasks go first and take the two racks that are not hot; the large job may not use the third.
    assert world.starts(plan) == {"wide": ["warm", "cool"], "small": ["hot"]}
    assert world.reasons(plan) == {"large": "WaitingForResources"}
    assert ("cool-racks", 1) in {(gate.gate, gate.alone) for gate in plan.decisions[0].gates}
    assert plugins["cool-racks"].started == 2  # type: ignore[attr-defined]


def test_the_one_that_is_asked_node_by_node_leaves_a_gibibyte(installed: Path) -> None:
    world = a_world(
        nodes=[a_node("login-1", memory_gib=4), a_node("n2", memory_gib=4)],
        pending=[a_job("fits", memory_gib=3), a_job("too-much", memory_gib=3.5)],
    )

    plan = plan_cycle(world.snapshot, a_policy(plugins=("one-by-one",)), installed_plugins())

    assert set(world.starts(plan)) == {"fits"}
    assert set(world.reasons(plan)) == {"too-much"}
