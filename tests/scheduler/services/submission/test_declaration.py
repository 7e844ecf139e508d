"""Every declared field of the job request against what it stands for: column, API schema, form, page, sbatch."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
from django.db import models
from django.test import Client
from django.urls import reverse

from infra.errors import MusterError
from infra.plain_text import SEVERAL_LINES
from scheduler.management.commands.describe_job_request import page
from scheduler.models import Job
from scheduler.services.submission import rules
from scheduler.services.submission.declaration import (
    Declared,
    Form,
    Kind,
    NotOnForm,
    Rule,
    Schema,
    rule,
    text,
)
from scheduler.services.submission.fields import Inputs
from scheduler.services.submission.job_spec import CALLED_ELSEWHERE, FIELDS, JOB, JobSpec
from scheduler.services.submission.parse_request import OWN_COLUMNS, own_columns
from scheduler.services.submission.sbatch.directives import Directives, Said
from scheduler.services.submission.sbatch.readers import READERS
from scheduler.web import forms
from tests.infra.api.conformance import document
from tests.scheduler.portal import Portal, a_portal, read
from tests.support.kept import made_once

REFERENCE: Final = Path(__file__).resolve().parents[4] / "docs" / "reference"
ALL: Final = [pytest.param(field, id=field.name) for field in JOB.fields]
COLUMNS: Final = {field.attname: field for field in Job._meta.concrete_fields}


one_portal = made_once(a_portal)


@pytest.fixture
def portal(one_portal: Portal, db: None) -> Portal:
    return deepcopy(one_portal)


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """The properties of the request in the committed description of the API."""
    properties: dict[str, Any] = document()["components"]["schemas"]["JobRequestRequest"]["properties"]
    return properties


def problems(portal: Portal, **payload: Any) -> list[str]:
    """The fields of a request that are wrong, by their first names."""
    with pytest.raises(MusterError) as refused:
        read(portal, **payload)
    return [problem.field.partition("/")[0] for problem in refused.value.problems]


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize("field", ALL)
def test_a_field_fills_columns_that_there_are_or_says_what_it_means(field: Declared) -> None:
    assert bool(field.columns) != bool(field.means)
    assert field.columns.keys() <= COLUMNS.keys()


@pytest.mark.parametrize("field", ALL)
def test_a_column_holds_what_its_field_may_be(field: Declared) -> None:
    if len(field.columns) != 1:
        return
    column = COLUMNS[next(iter(field.columns))]
    if field.kind is Kind.TEXT and isinstance(column, models.CharField):
        assert column.max_length == field.most
    elif field.kind is Kind.CHOICE:
        assert sorted(value for value, _ in column.flatchoices) == sorted(field.choices)
    elif field.kind is Kind.LINES:
        assert column.max_length is None
    if isinstance(column, models.PositiveSmallIntegerField) and not isinstance(column, models.AutoField):
        assert field.most is not None
        assert field.most <= 32_767


@pytest.mark.parametrize("field", ALL)
def test_what_is_left_out_becomes_the_default_of_the_column(field: Declared, portal: Portal) -> None:
    if len(field.columns) != 1 or field.left_out or field.name == "command":
        return
    spec = read(portal)
    columns = spec.kind.columns | dict(zip(OWN_COLUMNS, own_columns(spec), strict=True))
    assert columns[next(iter(field.columns))] == field.default


# ---------------------------------------------------------------- the API's schema


@pytest.mark.parametrize("field", ALL)
def test_the_api_describes_a_field_with_its_limits(field: Declared, described: dict[str, Any]) -> None:
    for name in field.names:
        said = described[name]
        whole = str(said)
        assert said["description"]
        if field.kind in (Kind.TEXT, Kind.LINES):
            assert said.get("maxLength") == field.most
        elif field.kind is Kind.INTEGER:
            assert (said["minimum"], said["maximum"]) == (field.least, field.most)
        elif field.kind is Kind.DURATION:
            assert f"'maximum': {field.most}" in whole
        if field.schema is not None:
            assert all(f"'{inner.name}': {{" in whole for inner in field.schema.fields)


def test_the_api_describes_the_declared_fields_and_no_others(described: dict[str, Any]) -> None:
    assert described.keys() == FIELDS


# ---------------------------------------------------------------- the form


@pytest.mark.parametrize("field", ALL)
def test_a_field_is_on_the_form_or_says_why_not(field: Declared) -> None:
    if isinstance(field.form, NotOnForm):
        assert field.form.because.endswith(".")
        assert field.name not in forms.ON_FORM
    else:
        assert field.form.label


def test_the_page_shows_every_field_of_the_form_with_its_limit(portal: Portal, client: Client) -> None:
    client.force_login(portal.cast.owner, backend="accounts.backends.PasswordBackend")

    shown = client.get(reverse("submit")).content.decode()

    for field in forms.ON_FORM.values():
        name = forms.SHOWN_AT.get(field.name, field.name)
        tag = re.search(rf'<(?:input|select|textarea)[^>]*name="{name}"[^>]*>', shown)
        assert tag is not None, name
        if isinstance(field.form, Form) and field.kind is Kind.TEXT and field.form.widget == "input":
            assert f'maxlength="{field.most}"' in tag[0]


def test_a_form_that_is_filled_in_asks_for_each_of_its_fields() -> None:
    typed = dict.fromkeys(forms.ON_FORM, "1") | {"what": "true", "env": "A=1", "node_selector": "a=b",
             "begin_at": "2027-01-31T18:00", "deadline": "2027-02-01T18:00", "pack": "rack"}  # fmt: skip

    assert forms.payload_of(typed, time_zone="UTC").keys() == forms.ON_FORM.keys()


# ---------------------------------------------------------------- the reference page, other names, sbatch


def test_the_reference_page_is_the_one_that_the_declaration_makes() -> None:
    committed = (REFERENCE / "job-request.md").read_text()

    assert committed == page(), "Run `make docs` and commit docs/reference/job-request.md."


@pytest.mark.parametrize("name", sorted(CALLED_ELSEWHERE))
def test_what_other_systems_call_a_field_leads_to_ours(name: str, portal: Portal) -> None:
    assert name not in FIELDS
    assert name == name.lower().replace("-", "_")
    with pytest.raises(MusterError, match=f"did you mean '{CALLED_ELSEWHERE[name]}'"):
        read(portal, **{name: 1})


def test_fields_of_several_lines_are_known_at_the_door() -> None:
    several = {field.name for field in JOB.fields if field.kind is Kind.LINES}

    assert several <= SEVERAL_LINES


SAID: Final = ("1", "10", "gpu:1", "1G", "vision", "HIGH", "0-9", "afterok:1", "now", "A=1", "/data", "ssd", "local",
               "enforce-binding")  # fmt: skip


@pytest.mark.parametrize("option", sorted(READERS))
def test_an_option_of_sbatch_fills_declared_fields_alone(option: str, db: None) -> None:
    filled: set[str] = set()
    for value in SAID:
        found = Directives(said={option: Said(2, "")})
        try:
            READERS[option](found, value)
        except ValueError:
            continue  # not what this option takes
        filled |= found.fields.keys()

    assert filled <= FIELDS


def test_a_directive_cannot_fill_a_field_that_no_job_has() -> None:
    with pytest.raises(KeyError, match="time_limt"):
        Directives().fill("time_limt", 60)


# ---------------------------------------------------------------- rules


@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in JOB.rules])
def test_a_rule_is_one_sentence_about_declared_fields(one: Any) -> None:
    assert one.sentence.endswith(".")
    assert set(one.fields) <= FIELDS


def test_a_rule_about_a_field_that_nobody_declares_is_refused() -> None:
    @rule("naem")
    def has_a_name(draft: Any, inputs: Inputs) -> None:
        """A name is there."""

    with pytest.raises(LookupError, match="naem"):
        Schema(JobSpec, [has_a_name])


# ---------------------------------------------------------------- whatever a field is given

WRONG: Final[dict[Kind, Any]] = {
    Kind.TEXT: 7.5, Kind.LINES: 7, Kind.INTEGER: "many", Kind.FLAG: "perhaps", Kind.CHOICE: "odd", Kind.AMOUNT: "lots",
    Kind.NAME_OR_NUMBER: [1], Kind.DURATION: "soon", Kind.MOMENT: "someday", Kind.TEXTS: [1], Kind.COUNTS: [1],
    Kind.OBJECT: [1], Kind.OBJECTS: {"a": 1}, Kind.ENTRIES: ["x"], Kind.CHOICE_OR_OBJECT: "moon",
    Kind.TEXT_LIST: "one",
}  # fmt: skip


def wrong_value(field: Declared) -> Any:
    return "two words" if field.name in ("job_type", "ref") else WRONG[field.kind]


@pytest.mark.parametrize("field", ALL)
def test_a_field_of_the_wrong_kind_is_named(field: Declared, portal: Portal) -> None:
    assert set(problems(portal, **{field.name: wrong_value(field)})) == {field.name}


def test_all_wrong_fields_are_named_in_one_answer(portal: Portal) -> None:
    wrong = {field.name: wrong_value(field) for field in JOB.fields}

    assert set(problems(portal, **wrong)) == wrong.keys()


@pytest.mark.parametrize("field", ALL)
def test_null_and_empty_text_are_as_good_as_nothing(field: Declared, portal: Portal) -> None:
    if field.name == "command":
        return
    left_out = read(portal)

    assert read(portal, **{field.name: None}) == read(portal, **{field.name: " "}) == left_out


@pytest.mark.parametrize("field", [one for one in ALL if one.values[0].kind in (Kind.INTEGER, Kind.TEXT)])
def test_the_limits_of_a_field_are_those_declared(field: Declared) -> None:
    def taken(value: Any) -> bool:
        inputs = Inputs({field.name: value})
        inputs.draft = JobSpec(tasks=10_000)  # type: ignore[attr-defined]
        field.read(inputs, field.name)
        return not inputs.problems

    if field.kind is Kind.INTEGER:
        assert field.least is not None
        assert field.most is not None
        tried = (field.least - 1, field.least, field.most, field.most + 1)
        assert [taken(value) for value in tried] == [False, True, True, False]
    elif field.most is not None and field.name not in (
        "array",
        "gpu_slice",
        "image",
        "mail_type",
        "reservation",
        "upload",
    ):  # these have a form of their own
        first = "/" if field.name == "working_dir" else "x"
        assert taken(first * field.most)
        assert not taken(first * (field.most + 1))


def test_a_new_field_is_read_bounded_and_stored_by_its_declaration_alone() -> None:
    from dataclasses import dataclass

    @dataclass
    class Trial:
        note: str = text("note", most=80, help="A word.", columns={"note": ""})

    schema = Schema(Trial)
    trial, inputs = schema.read({"note": "by hand"}, under="")
    _, refused = schema.read({"note": "x" * 81, "nota": 1}, under="")

    assert (trial.note, inputs.problems) == ("by hand", [])
    assert schema.columns() == {"note": "note"}
    assert [problem.field for problem in refused.problems] == ["nota", "note"]


def test_every_rule_that_is_written_is_kept() -> None:
    assert {one.name for one in vars(rules).values() if isinstance(one, Rule)} == {
        one.name for one in rules.RULES
    }
