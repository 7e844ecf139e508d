"""Where a job may run: labels, tolerations, affinity and packing, read into the forms that its row keeps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from infra.plain_text import line_problem
from scheduler.core.lifecycle import PackLevel
from scheduler.core.snapshot.constraints import (
    HARD_EFFECTS,
    NO_EXECUTE,
    NODE_NAME,
    PREFER_NO_SCHEDULE,
    TOPOLOGIES,
)
from scheduler.models import JobRequest
from scheduler.services.submission.declaration import (
    Kind,
    Schema,
    choice,
    declared,
    flag,
    integer,
    kept_objects,
    rule,
    text,
    word,
)
from scheduler.services.submission.fields import BadValue, Inputs, read_integer, text_trouble

KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?")
MAX_LABELS: Final = 64
MAX_TERMS: Final = 16
MAX_VALUES: Final = 64
MAX_VALUE: Final = 253
MAX_NAME: Final = 200
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


# ---------------------------------------------------------------- packing


class Pack(NamedTuple):
    """The topology level that the tasks share; "" is no preference."""

    level: str = ""
    required: bool = False


@dataclass(slots=True)
class PackAsked:
    """`pack` as an object."""

    level: str = choice("level", PackLevel, default="", help="The topology level that the tasks share.")
    required: bool = flag(
        "required", default=False, help="The job waits rather than start with tasks further apart."
    )


@rule("level")
def a_pack_has_a_level(pack: PackAsked, inputs: Inputs) -> None:
    """`pack` as an object names a level."""
    if not pack.level and inputs.given("level") is None:
        inputs.wrong("level", f"Required: one of {', '.join(PackLevel)}.", code="required")


PACK: Final = Schema(PackAsked, [a_pack_has_a_level])


def read_pack(inputs: Inputs, name: str) -> Pack:
    """`"rack"` wishes; `{"level": "rack", "required": true}` must."""
    value = inputs.given(name)
    if not isinstance(value, Mapping):
        return Pack(inputs.choice(name, PackLevel, default=""))
    pack, one = PACK.read(value, under=f"{inputs.under}{name}/")
    inputs.problems += one.problems
    return Pack(pack.level, pack.required)


# ---------------------------------------------------------------- tolerations


@dataclass(slots=True)
class Toleration:
    """A taint that the job may run beside."""

    key: str = text("key", most=MAX_VALUE, help="The taint's key; without one, every taint.")
    value: str = text("value", most=MAX_VALUE, help="The taint's value, with the operator Equal.")
    operator: str = word(
        "operator", ("Equal", "Exists"), default="Equal", help="Exists tolerates every value of the key."
    )
    effect: str = word("effect", EFFECTS, default="", help="Only taints of this effect; left out, of all.")
    seconds: int | None = integer(
        "seconds", least=0, most=MAX_SECONDS, unit="seconds",
        help="How long a running job stays once a NoExecute taint was put; left out, without limit.",
    )  # fmt: skip

    def kept(self) -> dict[str, Any]:
        """The form that the job's row keeps."""
        kept: dict[str, Any] = {"key": self.key, "operator": self.operator, "value": self.value}
        kept["effect"] = self.effect
        return kept if self.seconds is None else kept | {"seconds": self.seconds}


@rule("key", "operator", "effect")
def equal_needs_a_key(toleration: Toleration, inputs: Inputs) -> None:
    """The operator Equal needs a key."""
    if toleration.operator == "Equal" and not toleration.key:
        inputs.wrong(
            "key",
            'Required with operator "Equal"; use "Exists" to tolerate every taint.',
            code="required",
        )


@rule("operator", "value")
def exists_takes_no_value(toleration: Toleration, inputs: Inputs) -> None:
    """The operator Exists takes no value."""
    if toleration.operator == "Exists" and toleration.value:
        inputs.wrong("value", 'Not used with operator "Exists"; leave it out.', code="inconsistent")


@rule("seconds", "effect")
def seconds_are_of_no_execute(toleration: Toleration, inputs: Inputs) -> None:
    """`seconds` belongs to the effect NoExecute."""
    if toleration.seconds is not None and toleration.effect not in ("", NO_EXECUTE):
        inputs.wrong("seconds", "Only allowed with the effect NoExecute.", code="inconsistent")


TOLERATION: Final = Schema(Toleration, [equal_needs_a_key, exists_takes_no_value, seconds_are_of_no_execute])


def read_tolerations(inputs: Inputs, name: str) -> list[dict[str, Any]]:
    """A list of tolerations, in the form that the job's row keeps."""
    return kept_objects(inputs, name, TOLERATION, most=MAX_LABELS, has="key, operator, value and effect")


# ---------------------------------------------------------------- node affinity


def _values(inputs: Inputs, name: str) -> list[str]:
    return [str(value) for value in inputs.listing(name, most=MAX_VALUES) if isinstance(value, (str, int))]


@dataclass(slots=True)
class Requirement:
    """What one label of a node has to be."""

    key: str = text("key", most=MAX_VALUE, help="The label's key; @node is the name of the node.")
    operator: str = word("operator", OPERATORS, default="In", help="Gt and Lt compare whole numbers.")
    values: list[str] = declared(
        "values", kind=Kind.TEXT_LIST, read=_values, help="What the operator compares with.", default=[],
        most=MAX_VALUES,
    )  # fmt: skip

    def kept(self) -> dict[str, Any]:
        """The form that the job's row keeps."""
        return {"key": self.key, "operator": self.operator, "values": self.values}


@rule("key", "operator", "values")
def a_requirement_names_a_label(requirement: Requirement, inputs: Inputs) -> None:
    """A requirement names the key of a label, or nodes themselves: @node, with In or NotIn."""
    if requirement.key == NODE_NAME:
        if requirement.operator not in ("In", "NotIn"):
            inputs.wrong("operator", f"Must be In or NotIn with the key {NODE_NAME}.", code="inconsistent")
    elif not KEY.fullmatch(requirement.key) and not (requirement.key == "" and inputs.problems):
        inputs.wrong("key", _BAD_KEY, code="bad-name")


@rule("key", "operator", "values")
def values_suit_the_operator(requirement: Requirement, inputs: Inputs) -> None:
    """In and NotIn need values, Exists and DoesNotExist take none, Gt and Lt take one whole number."""
    operator, values = requirement.operator, requirement.values
    if any(text_trouble(value, most=MAX_VALUE) or line_problem(value) for value in values):
        inputs.wrong("values", "Contains text that is not a valid label value.", code="bad-text")
    elif operator in ("In", "NotIn") and not values:
        inputs.wrong("values", f"Required with operator {operator!r}.", code="required")
    elif operator in ("Exists", "DoesNotExist") and values:
        inputs.wrong("values", f"Not used with operator {operator!r}; leave it out.", code="inconsistent")
    elif operator in ("Gt", "Lt") and (len(values) != 1 or read_integer(values[0]) is None):
        inputs.wrong("values", f"Must be one whole number with operator {operator!r}.", code="not-a-number")


REQUIREMENT: Final = Schema(Requirement, [a_requirement_names_a_label, values_suit_the_operator])


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
    requirement = REQUIREMENT.item(inputs, item, at, has="key, operator and values")
    return {} if requirement is None else requirement.kept()


def _of_a_preference(inputs: Inputs, name: str) -> list[dict[str, Any]]:
    return _requirements(inputs, inputs.payload.get(name), name)


@dataclass(slots=True)
class Preference:
    """Requirements that a node had better meet."""

    weight: int = integer("weight", least=1, most=100, default=1, help="How much, beside other preferences.")
    requirements: list[dict[str, Any]] = declared(
        "requirements", kind=Kind.OBJECTS, read=_of_a_preference, always=True, schema=REQUIREMENT, default=[],
        most=MAX_TERMS, help="All of them.",
    )  # fmt: skip

    def kept(self) -> dict[str, Any]:
        """The form that the job's row keeps."""
        return {"weight": self.weight, "requirements": self.requirements}


PREFERENCE: Final = Schema(Preference)


def _required(inputs: Inputs, name: str) -> list[list[dict[str, Any]]]:
    return [
        _requirements(inputs, term, f"{name}/{number}")
        for number, term in enumerate(inputs.listing(name, most=MAX_TERMS))
    ]


def _preferred(inputs: Inputs, name: str) -> list[dict[str, Any]]:
    return kept_objects(inputs, name, PREFERENCE, most=MAX_TERMS, has="weight and requirements")


# ---------------------------------------------------------------- affinity to other jobs


def _array(value: Any) -> str:
    if isinstance(value, str) and value.strip().lower() == "own":
        return "own"
    number = read_integer(value)
    rows = JobRequest.objects.filter(array_number=number).values_list("array_id", flat=True)
    found = rows.first() if number is not None and 0 < number < 2**63 else None
    if found is not None:
        return str(found)
    try:
        return str(UUID(str(value)))  # as people wrote it before arrays had numbers
    except ValueError:
        raise BadValue('Must be "own" or the number of an array that there is') from None


def _own_or_id(inputs: Inputs, name: str) -> str:
    array: str = inputs.read(name, _array, default="")
    return array


@dataclass(slots=True)
class JobSelector:
    """Which jobs: those that match all that is said."""

    labels: dict[str, str] = declared(
        "labels",
        kind=Kind.TEXTS,
        read=read_labels,
        default={},
        most=MAX_LABELS,
        help="Jobs with these labels.",
    )
    name: str = text("name", most=MAX_NAME, help="Jobs of this name.")
    array: str = declared(
        "array", kind=Kind.TEXT, read=_own_or_id, default="", help='"own", or the number of an array.'
    )

    def kept(self) -> dict[str, Any]:
        """The form that the job's row keeps."""
        said = {"labels": self.labels, "name": self.name, "array": self.array}
        return {name: value for name, value in said.items() if value}


SELECTOR: Final = Schema(JobSelector)


def _selector(inputs: Inputs, side: str) -> dict[str, Any] | None:
    if inputs.given("near") is not None and inputs.given("apart") is not None:
        return None  # `near_or_apart` says so
    selector, one = SELECTOR.read(inputs.mapping(side, most=3), under=f"{inputs.under}{side}/")
    said = selector.kept()
    if not said and not one.problems:
        inputs.wrong(side, "Selects no jobs: give labels, a name, or array.", code="required")
    inputs.problems += one.problems
    return said


@dataclass(slots=True)
class JobTerm:
    """Other jobs that this one runs near to or apart from."""

    topology_key: str = word("topology_key", TOPOLOGIES, default="node", help="In the same one, or not.")
    weight: int | None = integer(
        "weight", least=1, most=100, help="A preference; without a weight, a requirement."
    )
    near: dict[str, Any] | None = declared(
        "near", kind=Kind.OBJECT, read=_selector, schema=SELECTOR, help="Run where such jobs run."
    )
    apart: dict[str, Any] | None = declared(
        "apart", kind=Kind.OBJECT, read=_selector, schema=SELECTOR, help="Run where no such jobs run."
    )

    def kept(self) -> dict[str, Any]:
        """The form that the job's row keeps."""
        term: dict[str, Any] = {"apart": self.apart is not None, "topology_key": self.topology_key}
        term |= self.near or self.apart or {}
        return term | {"weight": self.weight} if self.weight else term


@rule("near", "apart")
def near_or_apart(term: JobTerm, inputs: Inputs) -> None:
    """A term names the jobs to be near to or those to be apart from, one of the two."""
    sides = [side for side in ("near", "apart") if inputs.given(side) is not None]
    if len(sides) != 1:
        inputs.wrong("near", "Give near or apart, one of them.", code="one-of" if sides else "required")


JOB_TERM: Final = Schema(JobTerm, [near_or_apart])


def read_job_terms(inputs: Inputs, name: str) -> list[dict[str, Any]]:
    """A list of terms about other jobs, in the form that the job's row keeps."""
    return kept_objects(inputs, name, JOB_TERM, most=MAX_TERMS, has="near or apart, and topology_key")


# ---------------------------------------------------------------- spread of the job's own tasks


@dataclass(slots=True)
class DomainBounds:
    """Over how many domains the tasks are spread."""

    least: int | None = integer("least", least=1, most=MAX_DOMAINS, help="Over as few domains.")
    most: int | None = integer("most", least=1, most=MAX_DOMAINS, help="Over as many domains.")


@rule("least", "most")
def the_least_is_at_most_the_most(bounds: DomainBounds, inputs: Inputs) -> None:
    """`least` is at most `most`."""
    if bounds.least and bounds.most and bounds.least > bounds.most:
        inputs.wrong("least", "Is greater than most.", code="inconsistent")


DOMAIN_BOUNDS: Final = Schema(DomainBounds, [the_least_is_at_most_the_most])


def _domains(inputs: Inputs, name: str) -> DomainBounds:
    if not isinstance(inputs.given(name), Mapping):
        count = inputs.integer(name, least=1, most=MAX_DOMAINS)
        return DomainBounds(count, count)
    bounds, one = DOMAIN_BOUNDS.read(inputs.mapping(name, most=2), under=f"{inputs.under}{name}/")
    inputs.problems += one.problems
    return bounds


@dataclass(slots=True)
class TaskTerm:
    """How the job's own tasks are spread over domains."""

    topology_key: str = word("topology_key", TOPOLOGIES[:-1], default="rack", help="What a domain is.")
    domains: DomainBounds | None = declared(
        "domains", kind=Kind.NUMBER_OR_OBJECT, read=_domains, schema=DOMAIN_BOUNDS,
        help="How many domains: a number, or the least and the most.", least=1, most=MAX_DOMAINS,
    )  # fmt: skip
    per_domain: int | None = integer(
        "per_domain", least=1, most=MAX_DOMAINS, help="Tasks in one domain, at most."
    )
    soft: bool = flag("soft", default=False, help="A preference rather than a requirement.")

    def kept(self) -> dict[str, Any]:
        """The form that the job's row keeps; empty where the term says nothing."""
        bounds = self.domains or DomainBounds()
        term = {
            "topology_key": self.topology_key, "least": bounds.least, "most": bounds.most,
            "per_domain": self.per_domain, "soft": self.soft,
        }  # fmt: skip
        term = {name: value for name, value in term.items() if value}
        return term if term.keys() - {"topology_key", "soft"} else {}


TASK_TERM: Final = Schema(TaskTerm)


def read_task_term(inputs: Inputs, name: str) -> dict[str, Any]:
    """The spread of the job's own tasks, in the form that its row keeps."""
    if inputs.given("regions") is not None:
        return {}  # `_regions` says that one of the two is enough
    term, one = TASK_TERM.read(inputs.mapping(name, most=4), under=f"{inputs.under}{name}/")
    inputs.problems += one.problems
    kept = term.kept()
    if not kept:
        inputs.wrong(name, "Is empty: give domains or per_domain.", code="required")
    return kept


def _regions(inputs: Inputs, name: str) -> dict[str, Any]:
    """`tasks` in short: "same", "different" (a region for each task), or exactly how many."""
    if inputs.given("tasks") is not None:
        inputs.wrong(name, "Same as tasks; give one of them.", code="one-of")
        return {}
    term: dict[str, Any] = inputs.read(name, _in_regions, default={})
    return term


def _in_regions(value: Any) -> dict[str, Any]:
    word = value.strip().lower() if isinstance(value, str) else value
    count = read_integer(word)
    if word == "same" or count == 1:
        return {"topology_key": "region", "most": 1}
    if word == "different":
        return {"topology_key": "region", "per_domain": 1}
    if count is None or not 1 <= count <= MAX_DOMAINS:
        raise BadValue('Must be "same", "different", or exactly how many')
    return {"topology_key": "region", "least": count, "most": count}


# ---------------------------------------------------------------- all of it together


@dataclass(slots=True)
class Affinity:
    """Where a job runs: by labels of nodes, by other jobs, and by its own tasks."""

    required: list[Any] = declared(
        "required", kind=Kind.TERMS, read=_required, schema=REQUIREMENT, default=[], most=MAX_TERMS,
        help='Terms joined by "or", each a list of requirements joined by "and".',
    )  # fmt: skip
    preferred: list[Any] = declared(
        "preferred", kind=Kind.OBJECTS, read=_preferred, schema=PREFERENCE, default=[], most=MAX_TERMS,
        help="Requirements that count for a node, with a weight.",
    )  # fmt: skip
    jobs: list[Any] = declared(
        "jobs", kind=Kind.OBJECTS, read=read_job_terms, schema=JOB_TERM, default=[], most=MAX_TERMS,
        help="Other jobs to be near to or apart from.",
    )  # fmt: skip
    tasks: dict[str, Any] = declared(
        "tasks", kind=Kind.OBJECT, read=read_task_term, schema=TASK_TERM, default={},
        help="How the job's own tasks are spread.",
    )  # fmt: skip
    regions: dict[str, Any] = declared(
        "regions", kind=Kind.NAME_OR_NUMBER, read=_regions, default={}, least=1, most=MAX_DOMAINS,
        help='Short for a spread over regions: "same", "different" (a region for each task), or exactly how many.',
    )  # fmt: skip


AFFINITY: Final = Schema(Affinity)


def read_affinity(inputs: Inputs, name: str) -> dict[str, Any]:
    """Affinity as the job's row keeps it: those of `required`, `preferred`, `jobs` and `tasks` that are said."""
    given = inputs.mapping(name, most=len(AFFINITY.fields))
    if not given:
        return {}
    asked, one = AFFINITY.read(given, under=f"{inputs.under}{name}/")
    inputs.problems += one.problems
    parts: dict[str, Any] = {
        "required": [term for term in asked.required if term],
        "preferred": [term for term in asked.preferred if term],
        "jobs": [term for term in asked.jobs if term],
        "tasks": asked.tasks or asked.regions,
    }
    return {name: terms for name, terms in parts.items() if terms}
