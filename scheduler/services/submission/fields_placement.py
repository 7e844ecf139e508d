"""Where a job may run: labels, tolerations and affinity, read into the forms its row keeps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from infra.plain_text import line_problem
from scheduler.core.snapshot.request_classes import HARD_EFFECTS, NO_EXECUTE, PREFER_NO_SCHEDULE, TOPOLOGIES
from scheduler.services.submission.fields import BadValue, Inputs, read_integer, text_trouble

KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?")
MAX_LABELS: Final = 64
MAX_TERMS: Final = 16
MAX_VALUES: Final = 64
MAX_VALUE: Final = 253
MAX_DOMAINS: Final = 10_000
MAX_SECONDS: Final = 10 * 365 * 86_400
OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
EFFECTS: Final = (*sorted(HARD_EFFECTS), PREFER_NO_SCHEDULE)

_BAD_KEY = "Not a label key: letters, digits and . _ - /, beginning and ending with a letter or digit."


def read_labels(inputs: Inputs, name: str) -> dict[str, str]:
    """A flat object of text, such as `{"arch": "amd64"}`."""
    found: dict[str, str] = {}
    for key, value in inputs.mapping(name, most=MAX_LABELS).items():
        at = f"{name}/{str(key)[:60]}"
        text = str(value).lower() if isinstance(value, bool) else value
        if not isinstance(key, str) or not KEY.fullmatch(key):
            inputs.wrong(at, _BAD_KEY, code="bad-name")
        elif not isinstance(text, (str, int, float)):
            inputs.wrong(at, "Must be text.", code="not-text")
        elif trouble := text_trouble(str(text), most=MAX_VALUE) or line_problem(str(text)):
            inputs.wrong(at, trouble, code="bad-text")
        else:
            found[key] = str(text)
    return found


def read_tolerations(inputs: Inputs) -> list[dict[str, Any]]:
    """`[{"key", "operator": "Equal" | "Exists", "value", "effect", "seconds"}]` (N3, N4).

    `seconds`: how long a running job stays once a NoExecute taint was put; left out, for ever.
    """
    found: list[dict[str, Any]] = []
    for number, item in enumerate(inputs.listing("tolerations", most=MAX_LABELS)):
        at = f"tolerations/{number}"
        if not isinstance(item, Mapping):
            inputs.wrong(at, "Must be an object with key, operator, value and effect.", code="not-an-object")
            continue
        one = Inputs(item, under=f"{inputs.under}{at}/")
        one.refuse_unknown(("key", "operator", "value", "effect", "seconds"))
        key, value = one.text("key", most=MAX_VALUE), one.text("value", most=MAX_VALUE)
        operator = _word(one, "operator", ("Equal", "Exists"), "Equal")
        effect = _word(one, "effect", EFFECTS, "")
        if operator == "Equal" and not key:
            one.wrong(
                "key",
                'Required with operator "Equal"; use "Exists" to tolerate every taint.',
                code="required",
            )
        if operator == "Exists" and value:
            one.wrong("value", 'Not used with operator "Exists"; leave it out.', code="inconsistent")
        seconds = one.integer("seconds", least=0, most=MAX_SECONDS)
        if seconds is not None and effect not in ("", NO_EXECUTE):
            one.wrong("seconds", "Only allowed with the effect NoExecute.", code="inconsistent")
        inputs.problems += one.problems
        kept: dict[str, Any] = {"key": key, "operator": operator, "value": value, "effect": effect}
        found.append(kept if seconds is None else kept | {"seconds": seconds})
    return found


def read_affinity(inputs: Inputs) -> dict[str, Any]:
    """Wishes about node labels (N5).

    `required` is a list of terms joined by "or", each a list of requirements joined by "and";
    `preferred` is a list of `{"weight": 1-100, "requirements": [...]}`; `jobs` and `tasks` are about other jobs
    and about the job's own tasks (`read_job_terms`, `read_task_term`), and `regions` says the latter in one word.
    """
    given = inputs.mapping("affinity", most=5)
    if not given:
        return {}
    one = Inputs(given, under=f"{inputs.under}affinity/")
    one.refuse_unknown(("required", "preferred", "jobs", "tasks", "regions"))
    required = [
        _requirements(one, term, f"required/{number}")
        for number, term in enumerate(one.listing("required", most=MAX_TERMS))
    ]
    preferred = [
        _preference(one, term, f"preferred/{number}")
        for number, term in enumerate(one.listing("preferred", most=MAX_TERMS))
    ]
    jobs, own = read_job_terms(one), read_task_term(one)
    inputs.problems += one.problems
    parts: dict[str, Any] = {
        "required": [term for term in required if term],
        "preferred": [term for term in preferred if term],
        "jobs": [term for term in jobs if term],
        "tasks": own,
    }
    return {name: terms for name, terms in parts.items() if terms}


def read_job_terms(inputs: Inputs) -> list[dict[str, Any]]:
    """`[{"near" or "apart": {"labels", "name", "array"}, "topology_key", "weight"}]`; without weight it is a must."""
    found: list[dict[str, Any]] = []
    for number, item in enumerate(inputs.listing("jobs", most=MAX_TERMS)):
        at = f"jobs/{number}"
        if not isinstance(item, Mapping):
            inputs.wrong(at, "Must be an object with near or apart, and topology_key.", code="not-an-object")
            continue
        one = Inputs(item, under=f"{inputs.under}{at}/")
        one.refuse_unknown(("near", "apart", "topology_key", "weight"))
        sides = [side for side in ("near", "apart") if one.given(side) is not None]
        topology = _word(one, "topology_key", TOPOLOGIES, "node")
        weight = one.integer("weight", least=1, most=100)
        term: dict[str, Any] = {"apart": sides == ["apart"], "topology_key": topology}
        if len(sides) != 1:
            one.wrong("near", "Give near or apart, one of them.", code="one-of" if sides else "required")
        else:
            term |= _jobs_like(one, sides[0])
        if weight:
            term["weight"] = weight
        inputs.problems += one.problems
        found.append(term)
    return found


def _jobs_like(inputs: Inputs, side: str) -> dict[str, Any]:
    """Which jobs: `{"labels": {...}, "name": "...", "array": "own" or an array's id}`, all that is said together."""
    one = Inputs(inputs.mapping(side, most=3), under=f"{inputs.under}{side}/")
    one.refuse_unknown(("labels", "name", "array"))
    said = {
        "labels": read_labels(one, "labels"),
        "name": one.text("name", most=200),
        "array": one.read("array", _array, default=""),
    }
    if not any(said.values()) and not one.problems:
        inputs.wrong(side, "Selects no jobs: give labels, a name, or array.", code="required")
    inputs.problems += one.problems
    return {name: value for name, value in said.items() if value}


def _array(value: Any) -> str:
    if isinstance(value, str) and value.strip().lower() == "own":
        return "own"
    try:
        return str(UUID(str(value)))
    except ValueError:
        raise BadValue('Must be "own" or the array_id of an array') from None


def read_task_term(inputs: Inputs) -> dict[str, Any]:
    """`tasks`: `{"topology_key", "domains": 2 or {"least", "most"}, "per_domain", "soft"}`.

    `regions` is short for it: "same", "different" (a region for each task), or exactly so many (C22).
    """
    regions = inputs.given("regions")
    if regions is not None and inputs.given("tasks") is not None:
        inputs.wrong("regions", "Same as tasks; give one of them.", code="one-of")
        return {}
    if regions is not None:
        return inputs.read("regions", _regions, default={})
    if inputs.given("tasks") is None:
        return {}
    one = Inputs(inputs.mapping("tasks", most=4), under=f"{inputs.under}tasks/")
    one.refuse_unknown(("topology_key", "domains", "per_domain", "soft"))
    term: dict[str, Any] = {"topology_key": _word(one, "topology_key", TOPOLOGIES[:-1], "rack")}
    if isinstance(one.given("domains"), Mapping):
        bounds = Inputs(one.mapping("domains", most=2), under=f"{one.under}domains/")
        bounds.refuse_unknown(("least", "most"))
        term |= {name: bounds.integer(name, least=1, most=MAX_DOMAINS) for name in ("least", "most")}
        if term["least"] and term["most"] and term["least"] > term["most"]:
            bounds.wrong("least", "Is greater than most.", code="inconsistent")
        one.problems += bounds.problems
    elif (count := one.integer("domains", least=1, most=MAX_DOMAINS)) is not None:
        term |= {"least": count, "most": count}
    term["per_domain"] = one.integer("per_domain", least=1, most=MAX_DOMAINS)
    term["soft"] = one.flag("soft", default=False)
    inputs.problems += one.problems
    term = {name: value for name, value in term.items() if value}
    if len(term.keys() - {"topology_key", "soft"}) == 0:
        inputs.wrong("tasks", "Is empty: give domains or per_domain.", code="required")
        return {}
    return term


def _regions(value: Any) -> dict[str, Any]:
    word = value.strip().lower() if isinstance(value, str) else value
    count = read_integer(word)
    if word == "same" or count == 1:
        return {"topology_key": "region", "most": 1}
    if word == "different":
        return {"topology_key": "region", "per_domain": 1}
    if count is None or not 1 <= count <= MAX_DOMAINS:
        raise BadValue('Must be "same", "different", or exactly how many')
    return {"topology_key": "region", "least": count, "most": count}


def _preference(inputs: Inputs, term: Any, at: str) -> dict[str, Any]:
    if not isinstance(term, Mapping):
        inputs.wrong(at, "Must be an object with weight and requirements.", code="not-an-object")
        return {}
    one = Inputs(term, under=f"{inputs.under}{at}/")
    one.refuse_unknown(("weight", "requirements"))
    weight = one.integer("weight", least=1, most=100, default=1)
    requirements = _requirements(one, term.get("requirements"), "requirements")
    inputs.problems += one.problems
    return {"weight": weight, "requirements": requirements}


def _requirements(inputs: Inputs, term: Any, at: str) -> list[dict[str, Any]]:
    """One term: a list of requirements that all have to hold; a lone requirement counts as a list of one."""
    items = [term] if isinstance(term, Mapping) else term
    if not isinstance(items, (list, tuple)) or not items:
        inputs.wrong(at, "Must be a list of requirements with key, operator and values.", code="not-a-list")
        return []
    if len(items) > MAX_TERMS:
        inputs.wrong(at, f"Has {len(items)} requirements; the maximum is {MAX_TERMS}.", code="too-many")
        return []
    return [_requirement(inputs, item, f"{at}/{number}") for number, item in enumerate(items)]


def _requirement(inputs: Inputs, item: Any, at: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        inputs.wrong(at, "Must be an object with key, operator and values.", code="not-an-object")
        return {}
    one = Inputs(item, under=f"{inputs.under}{at}/")
    one.refuse_unknown(("key", "operator", "values"))
    key = one.text("key", most=MAX_VALUE)
    operator = _word(one, "operator", OPERATORS, "In")
    values = [str(value) for value in one.listing("values", most=MAX_VALUES) if isinstance(value, (str, int))]
    if not KEY.fullmatch(key) and not (key == "" and one.problems):
        one.wrong("key", _BAD_KEY, code="bad-name")
    if any(text_trouble(value, most=MAX_VALUE) or line_problem(value) for value in values):
        one.wrong("values", "Contains text that is not a valid label value.", code="bad-text")
    elif operator in ("In", "NotIn") and not values:
        one.wrong("values", f"Required with operator {operator!r}.", code="required")
    elif operator in ("Exists", "DoesNotExist") and values:
        one.wrong("values", f"Not used with operator {operator!r}; leave it out.", code="inconsistent")
    elif operator in ("Gt", "Lt") and (len(values) != 1 or read_integer(values[0]) is None):
        one.wrong("values", f"Must be one whole number with operator {operator!r}.", code="not-a-number")
    inputs.problems += one.problems
    return {"key": key, "operator": operator, "values": values}


def _word(inputs: Inputs, name: str, words: tuple[str, ...], default: str) -> str:
    """One of a few words, in whatever case it was written."""
    value = inputs.given(name)
    if value is None:
        return default
    for word in words:
        if isinstance(value, str) and value.strip().lower() == word.lower():
            return word
    inputs.wrong(name, f"Must be one of {', '.join(words)}.", code="unknown-choice")
    return default
