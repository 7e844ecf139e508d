"""`manage.py settings_reference`: write docs/reference/settings.md from the declarations."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from config.settings.declared import GROUPS, Setting

PAGE: Final = Path("docs/reference/settings.md")
#: Product code; tests and migrations read settings too, but nobody looks there for their effect.
SOURCES: Final = ("accounts", "config", "infra", "quotas", "scheduler")
_TYPES: Final = {
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "list",
    "dict": "map",
}
_COLUMNS: Final = "| variable | type | default | unit | meaning | used in |\n|---|---|---|---|---|---|\n"
_HEAD: Final = """# Settings

Environment variables that Muster reads. This page is generated from `config/settings/declared/` by
`manage.py settings_reference`, which `make docs` runs.

A boolean is `true` or `false`. A list is separated by commas, a map is `name=value` pairs separated by commas.
"""


class Command(BaseCommand):
    help = "Writes docs/reference/settings.md from the declarations of the settings."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--check", action="store_true", help="only compare; exit 1 if the page is out of date"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        page, text = Path(settings.ROOT) / PAGE, reference(Path(settings.ROOT))
        if options["check"]:
            if not page.exists() or page.read_text() != text:
                raise CommandError(f"{PAGE} is out of date: run manage.py settings_reference.")
            return
        page.write_text(text)


def reference(root: Path) -> str:
    """The page, from the declarations and the modules that name each setting."""
    modules = {
        path.relative_to(root): path.read_text()
        for source in SOURCES
        for path in sorted((root / source).rglob("*.py"))
        if not {"migrations", "declared"} & set(path.parts) and path.name != Path(__file__).name
    }
    parts = [_HEAD]
    for title, group in GROUPS:
        parts.append(f"\n## {title}\n\n{_COLUMNS}")
        parts += [_row(setting, modules) for setting in group]
    return "".join(parts)


def _row(setting: Setting, modules: dict[Path, str]) -> str:
    cells = (
        f"`{setting.name}`",
        _TYPES[setting.kind],
        _default(setting),
        setting.unit or "–",
        setting.meaning.replace("|", "\\|"),
        ", ".join(f"`{folder}`" for folder in _read_in(setting.name, modules)) or "–",
    )
    return f"| {' | '.join(cells)} |\n"


def _default(setting: Setting) -> str:
    if setting.secret:
        return "–"
    if setting.default is None:
        return "computed"
    if isinstance(setting.default, bool):
        return f"`{str(setting.default).lower()}`"
    if isinstance(setting.default, list):
        text = ",".join(setting.default)
    elif isinstance(setting.default, dict):
        text = ",".join(f"{name}={value}" for name, value in setting.default.items())
    else:
        text = str(setting.default)
    return f"`{text}`" if text else "empty"


def _read_in(name: str, modules: dict[Path, str]) -> list[str]:
    """Folders, at most two levels deep, of the modules that use the setting; else of those that only read it."""
    users = [path for path, text in modules.items() if f'"{name}"' in text or f"settings.{name}" in text]
    others = [path for path in users if path.parts[:2] != ("config", "settings")]
    return sorted({"/".join(path.parts[:-1][:2]) for path in others or users})
