"""How the API reads and pages: clean input, stable pages."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qs

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, ValidationError
from rest_framework import exceptions
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.pagination import CursorPagination
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from infra.api.problems import SEND_JSON, BadInput, too_big
from infra.errors import FieldProblem, InvalidInput, MusterError
from infra.plain_text import SEVERAL_LINES, line_problem, without_hidden

# ---------------------------------------------------------------- input


MAX_DEPTH: Final = 32
#: What `parse_clean` has made of this request's body already, in the scope of the request: a door before the views
#: that leaves a request to them gives it along.
READ_BODY: Final = "muster.read_body"


class CleanJSONParser(JSONParser):
    """JSON that can be stored: no NUL, no half surrogate, no NaN, no number or nesting without end."""

    #: Fields that may have several lines.
    several_lines: frozenset[str] = SEVERAL_LINES

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        request = getattr((parser_context or {}).get("request"), "_request", None)
        scope = getattr(request, "scope", {})
        if READ_BODY in scope:
            return scope[READ_BODY]
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        try:
            raw = stream.read(most + 1)
        except RequestDataTooBig as big:
            raise BadInput(too_big()) from big
        if len(raw) > most:
            raise BadInput(too_big())
        return parse_clean(raw, self.several_lines)


def parse_clean(raw: bytes, several_lines: frozenset[str] = SEVERAL_LINES) -> Any:
    """What a body in JSON says; raises ParseError or BadInput for what cannot be read, or not be stored.

    Only texts below fields named in `several_lines` may have more than one line.
    """
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError as broken:
        raise exceptions.ParseError("The body is not UTF-8.") from broken
    except RecursionError as broken:
        raise exceptions.ParseError("The body is nested too deep.") from broken
    except ValueError as broken:
        raise exceptions.ParseError(f"The body is not JSON: {str(broken)[:200]}.") from broken
    _check_clean(value, several_lines=several_lines)
    return value


def as_json(data: Any) -> bytes:
    """The body of an answer, as views render theirs."""
    rendered: bytes = JSONRenderer().render(data)
    return rendered


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _check_clean(
    value: Any,
    at: str = "",
    depth: int = 0,
    *,
    lines: bool = False,
    several_lines: frozenset[str] = SEVERAL_LINES,
) -> None:
    """`lines`: below a field that may have several."""
    if depth > MAX_DEPTH:
        raise exceptions.ParseError(f"The body is nested deeper than {MAX_DEPTH} levels.")
    if isinstance(value, str):
        _check_text(value, at, lines=lines)
    elif isinstance(value, dict):
        for name, inner in value.items():
            _check_text(name, at)
            if isinstance(inner, (str, dict, list)):
                below = f"{at}/{name}" if at else name
                below_lines = lines or name in several_lines
                _check_clean(inner, below, depth + 1, lines=below_lines, several_lines=several_lines)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            if isinstance(inner, (str, dict, list)):
                below = f"{at}/{number}" if at else str(number)
                _check_clean(inner, below, depth + 1, lines=lines, several_lines=several_lines)


def _check_text(text: str, at: str, *, lines: bool = False) -> None:
    if text.isascii() and (text.isprintable() or (lines and "\x00" not in text)):
        return
    trouble = unclean(text) or ("" if lines else _not_one_line(text))
    if trouble:
        where = without_hidden(at.encode("utf-8", "replace").decode().replace("\x00", "\N{SYMBOL FOR NULL}"))[
            :200
        ]
        raise BadInput(
            MusterError(
                message=f"{where or 'The body'} {trouble}.",
                code="bad-text",
                status=422,
                way_out=SEND_JSON,
                problems=[FieldProblem(where, f"{trouble[:1].upper()}{trouble[1:]}.", "bad-text")],
            )
        )


def unclean(text: str) -> str:
    """Why a text cannot be stored, or ""."""
    if "\x00" in text:
        return "contains a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains half a surrogate pair, which is not a character"
    return ""


def _not_one_line(text: str) -> str:
    trouble = line_problem(text).rstrip(".")
    return trouble[:1].lower() + trouble[1:]


def check_query(request: Request) -> None:
    """Refuse query values that no column can be compared with."""
    problems = [
        FieldProblem(name.replace("\x00", "")[:60], f"The value {trouble}.", "bad-text")
        for name, values in request.query_params.lists()
        for value in (name, *values)
        if (trouble := unclean(value))
    ]
    if problems:
        raise BadInput(
            MusterError(message=problems[0].message, code="bad-text", status=400, problems=problems)
        )


def check_known(request: Request, *names: str) -> None:
    """Refuse parameters that are not among these names: a misspelt one would show more than was asked for."""
    known = ", ".join(sorted(names))
    problems = [
        FieldProblem(
            name[:60],
            f"Unknown parameter {name[:60]!r}; {f'known are {known}' if names else 'this address takes none'}.",
            "unknown-filter",
        )
        for name in request.query_params
        if name not in names
    ]
    if problems:
        raise BadInput(
            MusterError(
                message=problems[0].message, code="invalid", status=400, problems=problems,
                way_out="Correct the query and send the request again.",
            )
        )  # fmt: skip


def bad_choice(name: str, choices: Iterable[str]) -> InvalidInput:
    """A value of a query that is none of the choices: an empty list would hide the mistake."""
    message = f"Must be one of {', '.join(choices)}."
    return InvalidInput(
        f"{name}: {message}",
        code="bad-filter",
        status=400,
        problems=[FieldProblem(name, message, "unknown-choice")],
        way_out="Correct the query and send the request again.",
    )


class Negotiation(DefaultContentNegotiation):
    """Problems are JSON whatever was asked for, and a view that can only speak JSON never refuses to."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        try:
            return super().select_renderer(request, renderers, None)
        except exceptions.NotAcceptable:
            return renderers[0], renderers[0].media_type

    def filter_renderers(self, renderers: Any, format: str) -> Any:
        return renderers


# ---------------------------------------------------------------- pages


def page_parameters(view: Any) -> tuple[str, ...]:
    """The parameters of a list's pages: none of a list that is given whole."""
    if not issubclass(getattr(view, "pagination_class", None) or object, CursorPagination):
        return ()
    more = [name for name, there in (("ordering", orderings_of(view)), ("count", counts(view))) if there]
    return "limit", "cursor", *more


def orderings_of(view: Any) -> dict[str, tuple[str, ...]]:
    """By each value that `ordering` may have in this list, the columns; the last one is unique."""
    return dict(getattr(view, "orderings", {}))


def counts(view: Any) -> bool:
    """Whether `count=true` gives the number of all rows of this list: only where counting them is cheap."""
    return bool(getattr(view, "counted", False))


def both_ways(**columns: str) -> dict[str, tuple[str, ...]]:
    """`orderings` of a list by these columns, none of which is ever null: `name` ascending, `-name` descending."""
    return {
        sign + name: tuple(dict.fromkeys((sign + column, f"{sign}pk")))
        for name, column in columns.items()
        for sign in ("", "-")
    }


class Whole:
    """A list that is given whole: `{results}`. It describes such answers and pages nothing."""

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        return []

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "required": ["results"], "properties": {"results": schema}}


class NewestFirst(CursorPagination):
    """`{results, next, previous}`, newest first; a page stays whole while rows come and go.

    A view may offer other orders (`orderings`, see `both_ways`) and the number of all rows (`counted`).
    """

    ordering = "-pk"
    page_size = 100
    max_page_size = 500
    #: Rows of the same moment, as all jobs of one array are, are counted from the first of them.
    offset_cutoff = 20_000
    page_size_query_param = "limit"
    cursor_query_param = "cursor"
    invalid_cursor_message = "This cursor is invalid: a list has not returned it."
    #: The number of all rows, where the caller asked for it.
    total: int | None = None

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> Any:
        limit = request.query_params.get("limit", "")
        if limit and not (
            limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= self.max_page_size
        ):
            message = f"Must be from 1 to {self.max_page_size}."
            raise BadInput(
                MusterError(
                    message=f"limit: {message}",
                    code="invalid",
                    status=400,
                    problems=[FieldProblem("limit", message, "out-of-range")],
                )
            )
        if counts(view) and self._asked(request, "count", ("true", "false")) == "true":
            self.total = queryset.count()
        try:
            return super().paginate_queryset(queryset, request, view)
        except (ValueError, TypeError, ValidationError) as broken:
            # A position that cannot be compared with the column it stands for.
            raise exceptions.NotFound(self.invalid_cursor_message) from broken

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        offered = orderings_of(view)
        if offered and (asked := self._asked(request, "ordering", offered)):
            return offered[asked]
        return tuple(getattr(view, "page_ordering", ("-pk",)))

    def _asked(self, request: Request, name: str, choices: Iterable[str]) -> str:
        value: str = request.query_params.get(name, "")
        if value and value not in choices:
            raise bad_choice(name, choices)
        return value

    def decode_cursor(self, request: Request) -> Any:
        given = request.query_params.get(self.cursor_query_param)
        try:
            if given and not parse_qs(b64decode(given.encode("ascii"), validate=True).decode("ascii")):
                raise ValueError("no cursor")
            return super().decode_cursor(request)
        except (ValueError, TypeError, OverflowError) as broken:
            raise exceptions.NotFound(self.invalid_cursor_message) from broken

    def get_paginated_response(self, data: Any) -> Response:
        page = {"results": data, "next": self.get_next_link(), "previous": self.get_previous_link()}
        return Response(page if self.total is None else {**page, "count": self.total})

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        described: list[dict[str, Any]] = super().get_schema_operation_parameters(view)
        if offered := orderings_of(view):
            described.append(_described("ordering", "Order of the list.", {"enum": list(offered)}))
        if counts(view):
            described.append(
                _described("count", "Also return the total number.", {"enum": ["true", "false"]})
            )
        return described

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        link = {"type": "string", "nullable": True, "format": "uri"}
        return {
            "type": "object",
            "required": ["results", "next", "previous"],
            "properties": {
                "results": schema,
                "next": link,
                "previous": link,
                "count": {
                    "type": "integer",
                    "description": "Only with count=true, where the list offers that.",
                },
            },
        }


def _described(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": text,
        "schema": {"type": "string", **schema},
    }
