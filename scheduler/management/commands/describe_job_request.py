"""Prints the reference page of the job request, made from its declaration: `make docs` keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand

from scheduler.services.submission.declaration import Declared, Form, Kind, NotOnForm, Schema
from scheduler.services.submission.job_spec import JOB

INTRODUCTION = """# The job request

What `POST /api/v1/jobs` takes; the submit form and `sbatch` scripts become the same request. All amounts are per task.
Absent, `null` and an empty text are one and the same: the field is left out. Every problem of a request is named in one
answer, with the field, the reason and what to do. This page is made from the declaration of the fields
(`scheduler/services/submission/job_spec.py`) by `make docs`.

"""


class Command(BaseCommand):
    help = "Print docs/reference/job-request.md."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(page(), ending="")


def page() -> str:
    """The whole page as Markdown."""
    parts = [INTRODUCTION, "## Fields\n\n", *_table(JOB), "\n"]
    for field in JOB.fields:
        if field.schema is not None:
            parts += [f"## Inside `{field.name}`\n\n", *_inside(field.name, field.schema, set())]
    parts += ["## Rules between fields\n\n", *(f"- {rule.sentence}\n" for rule in JOB.rules)]
    parts += [
        "\n## What other systems call them\n\n",
        "An unknown field is refused, with the field that was meant:\n\n",
    ]
    parts += ["| elsewhere | here |\n| --- | --- |\n"]
    parts += [
        f"| {', '.join(f'`{name}`' for name in field.elsewhere)} | `{field.name}` |\n"
        for field in JOB.fields
        if field.elsewhere
    ]
    parts += ["\n## Only in programs\n\n", "The submit form leaves these out:\n\n"]
    parts += [
        f"- `{field.name}`: {field.form.because}\n"
        for field in JOB.fields
        if isinstance(field.form, NotOnForm)
    ]
    return "".join(parts)


def _inside(path: str, schema: Schema[Any], shown: set[int]) -> Iterator[str]:
    """The objects inside a field, each described once."""
    shown.add(id(schema))
    if path not in JOB.by_name:
        yield f"### `{path}`\n\n"
    yield from _table(schema)
    yield "\n"
    yield from (f"- {rule.sentence}\n" for rule in schema.rules)
    yield "\n" if schema.rules else ""
    for field in schema.fields:
        if field.schema is not None and id(field.schema) not in shown:
            yield from _inside(f"{path}.{field.name}", field.schema, shown)


def _table(schema: Schema[Any]) -> Iterator[str]:
    yield "| field | takes | left out | meaning |\n| --- | --- | --- | --- |\n"
    for field in schema.fields:
        help = field.help if field.example is None else f"{field.help} Example: `{_example(field)}`"
        yield f"| {_names(field)} | {_takes(field)} | {_left_out(field)} | {help} |\n"
        for spelling in field.spellings:
            yield f"| `{spelling.name}` | {_takes(field)} | | {spelling.help} |\n"


def _names(field: Declared) -> str:
    shown = isinstance(field.form, Form) and (field.form.title or field.form.label)
    return f"`{field.name}`" + (f"<br>{shown}" if shown else "")


def _example(field: Declared) -> str:
    return json.dumps(field.example, ensure_ascii=False).replace("|", "\\|")


def _takes(field: Declared) -> str:
    """The kind of value and its bounds."""
    words = str(field.kind)
    if field.choices:
        words = words.replace("one of", "one of " + ", ".join(f"`{choice}`" for choice in field.choices))
    if field.kind in (Kind.TEXT, Kind.LINES):
        return words + (f", at most {field.most} characters" if field.most is not None else "")
    if field.kind is Kind.DURATION:
        return f"{words}; at most {field.most} seconds"
    if field.kind in (Kind.TEXTS, Kind.COUNTS, Kind.TEXT_LIST, Kind.OBJECTS, Kind.TERMS, Kind.ENTRIES):
        return words + (f", at most {field.most} entries" if field.most is not None else "")
    if field.least is not None:
        return f"{words}, {field.least} to {field.most}"
    return words


def _left_out(field: Declared) -> str:
    if field.left_out:
        return field.left_out
    if field.default in (None, "", (), {}, []):
        return "none"
    return f"`{json.dumps(field.default)}`"
