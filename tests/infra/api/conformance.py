"""Whether an answer of the API is the one that docs/reference/openapi.yaml describes."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import jsonschema_rs
import yaml

DOCUMENT: Final = Path(__file__).resolve().parents[3] / "docs" / "reference" / "openapi.yaml"
PROBLEM: Final = "application/problem+json"
#: Messages of agents, described in docs/explanation/agent-protocol.md, and the pages of the document itself.
NOT_DESCRIBED: Final = re.compile(r"^/api/v1/(agent/|docs|schema)")
#: A schema of the document that another one names.
_REF: Final = re.compile(r'"#/components/schemas/([^"]+)"')
#: Most faults of one answer that are listed.
MOST_FAULTS: Final = 5


class Operation(NamedTuple):
    name: str
    #: By status, the schemas of its bodies by content type; `default` is every problem.
    responses: dict[str, dict[str, Any]]


def faults_of(method: str, path: str, response: Any) -> list[str]:
    """Each difference between an answer of Django's test client and the document; none for what is not described.

    A status below 400 has to be listed, an error has to be a problem, and the JSON body of
    another answer has exactly the fields that its schema names.
    """
    if not path.startswith("/api/v1/") or NOT_DESCRIBED.match(path):
        return []
    operations = _operations_at(path)
    operation = operations.get("GET" if method == "HEAD" else method)
    status = response.status_code
    if operation is None:  # no such address, or not with this method: 405, once the caller is known
        allowed = (400, 401, 403, 405, 429) if operations else (404,)
        refused = status in allowed or status >= 500 or method == "OPTIONS"
        return [] if refused else [f"{method} {path}: {status}, not described"]
    described = operation.responses.get(str(status))
    if described is None and status >= 400:
        described = operation.responses.get("default")
    if described is None:
        return [f"{operation.name}: answers {status}, which is not described"]
    return list(_faults_of_body(operation, described, method, response))


def _faults_of_body(
    operation: Operation, described: dict[str, Any], method: str, response: Any
) -> Iterator[str]:
    kind = response.headers.get("Content-Type", "").partition(";")[0]
    where = f"{operation.name}: {response.status_code}"
    content = described.get("content", {})
    streaming = getattr(response, "streaming", False)
    if method == "HEAD" or (not streaming and not response.content):
        if method != "HEAD" and content:
            yield f"{where} has no body, but one is described"
        return
    if kind not in content:
        yield f"{where} is {kind!r}, but described as {sorted(content) or 'without a body'}"
        return
    if streaming or not kind.endswith("json"):
        return
    validator = _validator(operation.name, response.status_code, kind)
    packed = response.headers.get("Content-Encoding") == "gzip"
    body = json.loads(gzip.decompress(response.content) if packed else response.content)
    for number, error in enumerate(validator.iter_errors(body)):
        if number == MOST_FAULTS:
            return
        at = "/".join(str(part) for part in error.instance_path)
        yield f"{where} at /{at}: {error.message[:300]}"


# ---------------------------------------------------------------- the document


@cache
def document() -> dict[str, Any]:
    """The committed document, read once for all tests: nobody may change it."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, Any] = yaml.load(DOCUMENT.read_text(), loader)  # a safe one
    return found


@cache
def _components(*, exact: bool) -> dict[str, Any]:
    found = document()["components"]["schemas"]
    return {name: as_json_schema(schema, exact=exact) for name, schema in found.items()}


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """The paths of the document, those with fewer arguments first: /jobs/state is no job."""
    paths = sorted(document()["paths"], key=lambda path: path.count("{"))
    return [
        (re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)) + r"\Z"), str(path)) for path in paths
    ]


def _operations_at(path: str) -> dict[str, Operation]:
    found = next((template for pattern, template in _patterns() if pattern.match(path)), None)
    return _operations(found) if found is not None else {}


@cache
def _operations(template: str) -> dict[str, Operation]:
    return {
        method.upper(): Operation(f"{method.upper()} {template}", operation["responses"])
        for method, operation in document()["paths"][template].items()
        if isinstance(operation, dict) and "responses" in operation
    }


def _validator(operation: str, status: int, kind: str) -> Any:
    method, _, template = operation.partition(" ")
    responses = _operations(template)[method].responses
    schema = responses.get(str(status), responses.get("default", {}))["content"][kind]["schema"]
    # A problem may carry more beside the fields that all of them have.
    return _validator_of(json.dumps(schema), exact=status < 400)


@cache
def _validator_of(schema: str, *, exact: bool) -> Any:
    """All operations answer with a few hundred schemas, most of them with the same problem."""
    root = as_json_schema(json.loads(schema), exact=exact)
    components = _components(exact=exact)
    used: dict[str, Any] = {}
    waiting = [root]
    while waiting:
        for name in set(_REF.findall(json.dumps(waiting.pop()))) - used.keys():
            used[name] = components[name]
            waiting.append(components[name])
    return jsonschema_rs.Draft202012Validator(
        {**root, "components": {"schemas": used}}, validate_formats=True
    )


def as_json_schema(schema: Any, *, exact: bool = True) -> Any:
    """A schema of OpenAPI 3.0 as JSON Schema: `nullable` is a type; with `exact` objects have no other fields."""
    if isinstance(schema, list):
        return [as_json_schema(one, exact=exact) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        name: {key: as_json_schema(one, exact=exact) for key, one in inner.items()}
        if name == "properties"
        else inner
        if name in ("enum", "default", "example")
        else as_json_schema(inner, exact=exact)
        for name, inner in schema.items()
        if name != "nullable"
    }
    if exact and "properties" in made:
        made.setdefault("additionalProperties", False)
    return {"anyOf": [made, {"type": "null"}]} if schema.get("nullable") is True else made
