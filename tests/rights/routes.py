"""Every route of the resolver, and every operation of the OpenAPI document, with values for its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from django.apps import apps
from django.urls import URLPattern, URLResolver, get_resolver

from tests.infra.api.conformance import document
from tests.rights.world import VISION, Side, World

#: An argument of a route by where the route begins and what the argument is called: the key of `Side.ids`, a
#: list of fixed values, or a function of the world and the side.
ARGUMENTS: Final[dict[tuple[str, str], Any]] = {
    ("api/v1/jobs/", "ref"): "jobs",
    ("api/v1/jobs/", "index"): [1],
    ("api/v1/jobs/", "checkpoint"): "checkpoint",
    ("api/v1/arrays/", "number"): "array",
    ("api/v1/datasets/", "number"): "dataset",
    ("api/v1/nodes/", "ref"): ["alpha"],
    ("api/v1/reservations/", "ref"): "reservation",
    ("api/v1/profiles/", "name"): ["default"],
    ("api/v1/shadow-runs/", "number"): lambda world, side: _first("scheduler", "shadowrun"),
    ("api/v1/queues/quota/", "project_id"): "project",
    ("api/v1/queues/", "ref"): "queue",
    ("api/v1/quotas/requests/", "grant_id"): "grant",
    ("api/v1/quotas/requests/", "verb"): ["approve", "withdraw"],
    ("api/v1/quotas/impact/", "project_id"): "project",
    ("api/v1/quotas/lines/", "line_id"): "line",
    ("api/v1/quotas/notices/", "notice_id"): "notice",
    ("api/v1/quotas/budgets/", "budget_id"): "budget",
    ("api/v1/shares/", "kind"): ["project"],
    ("api/v1/shares/", "number"): "project_pk",
    ("api/v1/projects/", "ref"): "project",
    ("api/v1/projects/", "username"): "username",
    ("api/v1/projects/", "name"): "secret",
    ("api/v1/secrets/", "name"): "secret",
    ("api/v1/uploads/", "upload"): "upload",
    ("api/v1/uploads/", "number"): [0],
    ("api/v1/tokens/", "pk"): "token",
    ("api/v1/audit/", "pk"): lambda world, side: _first("accounts", "auditevent"),
    ("api/v1/notifications/", "number"): "notification",
    ("api/v1/webhooks/", "number"): "webhook",
    ("api/v1/webhooks/", "message"): "message",
    ("api/v1/", "path"): ["nothing"],
    ("docs/errors/", "code"): ["not-allowed"],
    ("tokens/", "token_id"): "token",
    ("projects/", "slug"): "project",
    ("projects/", "member_id"): "member",
    ("projects/", "name"): "secret",
    ("settings/secrets/", "name"): "secret",
    ("uploads/", "upload"): "upload",
    ("reservations/", "ref"): "reservation",
    ("reservations/", "verb"): ["cancel"],
    ("quota/requests/", "grant_id"): "grant",
    ("quota/requests/", "verb"): ["approve", "withdraw"],
    ("shares/", "kind"): ["project"],
    ("shares/", "number"): "project_pk",
    ("jobs/", "number"): "jobs",
    ("jobs/", "verb"): ["cancel"],
    ("jobs/", "index"): [1],
    ("arrays/", "number"): "array",
    ("arrays/", "verb"): ["hold"],
    ("jobs/", "checkpoint"): "checkpoint",
    ("nodes/", "node_id"): lambda world, side: [world.nodes[0].pk],
    ("nodes/", "verb"): ["drain"],
    ("queues/", "queue_id"): "queue_pk",
    ("queues/", "verb"): ["pause"],
    ("usage/notices/", "notice_id"): "notice",
    ("notifications/", "notification_id"): "notification",
    ("webhooks/", "webhook_id"): "webhook",
    ("webhooks/", "message_id"): "message",
    ("webhooks/", "verb"): ["disable"],
    ("admin/r/", "path"): ["1/1"],
    ("admin/r/", "content_type_id"): [1],
    ("admin/r/", "object_id"): [1],
    ("admin/", "object_id"): "row",
    ("admin/", "id"): "row",
    ("admin/", "name"): ["do"],
    ("admin/", "app_label"): ["scheduler"],
    ("admin/", "url"): ["nothing/"],
    ("admin/jsi18n/", "url"): ["nothing/"],
}
#: Parameters of queries, in the OpenAPI document and on pages, that take a name or a number of something.
NAMED: Final[dict[str, str]] = {
    "project": "project", "project_id": "project", "user": "username", "actor": "username", "queue": "queue",
    "partition": "partition", "account": "project", "job": "job", "ids": "job", "copy": "job", "object": "username",
    "organization": "organization", "id": "artifact", "label": "mark", "name": "mark", "text": "mark", "q": "mark",
}  # fmt: skip
#: What pages take besides, so that exports and refreshed parts are asked for as well.
ON_PAGES: Final = ("partial=1&tab=why", "export=csv&tab=log", "export=json&tab=events&view=table")


@dataclass(frozen=True, slots=True)
class Route:
    """One pattern of the resolver; `arguments` are the names to fill in."""

    pattern: str
    arguments: tuple[str, ...]

    @property
    def plain(self) -> str:
        """Without the marks of regular expressions: `api/v1/projects/<ref>/members`."""
        return plain(self.pattern)


def plain(pattern: str) -> str:
    text = re.sub(r"\(\?P<(\w+)>(?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", r"<\1>", pattern)
    text = re.sub(r"<\w+:(\w+)>", r"<\1>", text)
    return text.replace("^", "").replace("$", "").replace(r"\Z", "").replace("\\", "")


def routes() -> list[Route]:
    """All that the resolver knows, those of included modules too."""
    return list(_walk(get_resolver().url_patterns, "", ()))


def _walk(patterns: Any, before: str, arguments: tuple[str, ...]) -> Iterator[Route]:
    for pattern in patterns:
        text = before + str(pattern.pattern)
        names = (*arguments, *pattern.pattern.regex.groupindex)
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, text, names)
        elif isinstance(pattern, URLPattern):
            yield Route(text, names)


def operations() -> dict[str, dict[str, Any]]:
    """Path as in the OpenAPI document, without its first slash -> method -> operation."""
    return {nameless(path.lstrip("/")): dict(methods) for path, methods in document()["paths"].items()}


def nameless(path: str) -> str:
    """`api/v1/tokens/{}`: the document and the resolver may call an argument by different names."""
    return re.sub(r"<\w+>|\{\w+\}", "{}", path)


def meaning(route: str, argument: str) -> Any:
    """What fills an argument: of the longest beginning that the table knows; None where it knows none."""
    found = [start for start, name in ARGUMENTS if name == argument and route.startswith(start)]
    return ARGUMENTS[max(found, key=len), argument] if found else None


def not_filled() -> list[str]:
    """Arguments of routes that no row of the table fills, each with a sentence."""
    return sorted(
        {
            f"The route {route.plain} has the argument {name!r}, which nothing here fills: give it a value in "
            "ARGUMENTS (tests/rights/routes.py), so that the route is tried by every kind of caller."
            for route in routes()
            for name in route.arguments
            if meaning(route.plain, name) is None
        }
    )


@dataclass(frozen=True, slots=True)
class Address:
    """A route with its arguments filled; `echoes` are the texts the caller sends, which may come back."""

    route: str
    path: str
    echoes: tuple[str, ...] = ()


def addresses(world: World, side: Side) -> list[Address]:
    """Each route, filled with what belongs to this side."""
    found = []
    for route in routes():
        choices = [_values(world, side, route.plain, name) for name in route.arguments]
        for values in product(*choices):
            path = route.plain
            for name, value in zip(route.arguments, values, strict=True):
                path = path.replace(f"<{name}>", str(value))
            echoes = tuple(str(value) for value in values if side.mark in str(value))
            found.append(Address(route.plain, f"/{path}", echoes))
    return list(dict.fromkeys(found))


def _values(world: World, side: Side, route: str, name: str) -> list[Any]:
    key = meaning(route, name)
    if key == "row":
        return _row_of(route)
    value = key(world, side) if callable(key) else key if isinstance(key, list) else side.ids[key]
    if not isinstance(value, list):
        return [value]
    return value if side.mark == VISION else value[:1]


def _row_of(route: str) -> list[Any]:
    """A row of the table that a page of the admin is about."""
    _, app, model, *_ = route.split("/")
    return _first(app, model)


def _first(app: str, model: str) -> list[Any]:
    row = apps.get_model(app, model)._default_manager.order_by("pk").first()
    return ["1" if row is None else row.pk]


def queries(route: str, known: Mapping[str, dict[str, Any]], side: Side) -> list[tuple[str, tuple[str, ...]]]:
    """Queries for a GET of it, with what of them may be echoed: each choice of each parameter, each name."""
    document = known.get(nameless(route))
    if document is None:
        return [] if route.startswith(("api/", "admin/")) else [(query, ()) for query in ON_PAGES]
    found: list[tuple[str, tuple[str, ...]]] = []
    for parameter in document.get("get", {}).get("parameters", ()):
        name = parameter["name"]
        if parameter["in"] != "query":
            continue
        if name in ("export", "format", "stream"):
            found += [(f"{name}={choice}", ()) for choice in parameter.get("schema", {}).get("enum", ())]
        elif name in NAMED:
            value = side.mark if NAMED[name] == "mark" else str(
                side.ids["jobs"][0] if NAMED[name] == "job" else side.ids[NAMED[name]]
            )  # fmt: skip
            found.append((f"{name}={value}", (value,)))
    return found
