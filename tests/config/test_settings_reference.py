"""The reference of settings is what the declarations say, and every variable that is read is declared."""

from __future__ import annotations

import re
from pathlib import Path

from django.conf import settings

from config.management.commands.settings_reference import PAGE, SOURCES, reference
from config.settings.declared import GROUPS, SETTINGS

ROOT = Path(settings.ROOT)
#: Set by the agent for the processes of a job, and by nobody before it.
_GIVEN_TO_JOBS = ROOT / "scheduler/agent"


def test_the_committed_page_is_what_the_declarations_generate() -> None:
    assert (ROOT / PAGE).read_text() == reference(ROOT), "run manage.py settings_reference"


def test_every_variable_is_declared_once() -> None:
    names = [setting.name for _, group in GROUPS for setting in group]

    assert len(names) == len(set(names)) == len(SETTINGS)


def test_every_variable_that_the_code_names_is_declared() -> None:
    named = {
        (name, str(path.relative_to(ROOT)))
        for source in SOURCES
        for path in sorted((ROOT / source).rglob("*.py"))
        if _GIVEN_TO_JOBS not in path.parents
        for name in re.findall(
            r"""(?:environ(?:\.get)?[\[(]|getenv\(|\bread\()["']([A-Z][A-Z0-9_]+)["']""", path.read_text()
        )
    }

    assert {one for one in named if one[0] not in SETTINGS} == {
        ("DJANGO_SETTINGS_MODULE", path) for name, path in named if name == "DJANGO_SETTINGS_MODULE"
    }


def test_settings_files_read_the_environment_only_through_the_declarations() -> None:
    declarations = ROOT / "config/settings/declared"
    for path in sorted((ROOT / "config/settings").rglob("*.py")):
        if declarations in path.parents:
            continue
        assert not re.search(r"\benv\.\w+\(|os\.getenv|environ\.get\(", path.read_text()), path


def test_every_declared_variable_has_a_meaning() -> None:
    assert [one.name for one in SETTINGS.values() if not one.meaning.endswith(".")] == []
