"""The map is still true: who imports whom, what the core can live without, and that rows match models."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command

ROOT = Path(__file__).resolve().parents[2]
PURE = ["notifications.core", "quotas.core", "scheduler.core", "scheduler.agent"]
BLOCKED = ["django", "rest_framework", "celery", "channels", "redis", "psycopg", "config", "accounts"]


def modules_of(package: str) -> list[str]:
    """A package and all its modules, except programs that run when imported."""
    folder = ROOT.joinpath(*package.split("."))
    found = [module.name for module in pkgutil.walk_packages([str(folder)], prefix=f"{package}.")]
    return [package, *(name for name in found if not name.endswith(".__main__"))]


def test_every_pure_package_is_there() -> None:
    assert {package: len(modules_of(package)) > 1 for package in PURE} == dict.fromkeys(PURE, True)


@pytest.mark.parametrize("package", PURE)
def test_imports_where_the_web_and_the_database_are_blocked(package: str) -> None:
    code = "\n".join(
        [
            "import importlib, sys",
            f"sys.modules.update(dict.fromkeys({BLOCKED!r}))",
            f"[importlib.import_module(name) for name in {modules_of(package)!r}]",
        ]
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_the_import_contracts_hold() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")

    done = subprocess.run([lint_imports], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_supervisor_starts_without_django() -> None:
    code = "\n".join(
        [
            "import sys",
            "sys.modules.update(dict.fromkeys(['django', 'celery', 'channels', 'rest_framework']))",
            "import config.up.main, config.up.commands, config.up.bootstrap",
        ]
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_the_first_module_needs_the_standard_library_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import config.up.bootstrap"],  # -S: no installed package can be seen
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
