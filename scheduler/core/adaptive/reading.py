"""Reading: rules from the JSON of a profile or a recording; each that cannot be followed is refused with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from zoneinfo import ZoneInfo

from scheduler.core.adaptive.rules import (
    LARGE,
    MEASURES,
    MINUTES_A_DAY,
    WEEKDAYS,
    Bound,
    Condition,
    Rule,
)

#: Rules of one profile, and characters of a rule's name.
MOST_RULES: Final = 20
MOST_NAME: Final = 40
#: The largest weight of a score or a factor.
MOST_WEIGHT: Final = 1_000_000
#: The largest bound: of jobs, and of GPUs of one job.
_MOST: Final = 10_000_000

_SPAN: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")
_FIELDS: Final = ("name", "when", "policy", "tie_breakers", "factors", "placement", "score_weights")
_OF_BOUND: Final = ("at_least", "at_most", "leave", "gpus")


def read_rules(written: Any) -> tuple[tuple[Rule, ...], dict[str, str]]:
    """The rules that can be read, and by name (or place) why each of the others cannot."""
    if not isinstance(written, Sequence) or isinstance(written, str | bytes):
        return (), {
            "rules": "rules are a list of objects, each with a name, when it applies and what it sets"
        }
    rules: dict[str, Rule] = {}
    problems: dict[str, str] = {}
    for place, one in enumerate(written, start=1):
        name = str(one.get("name") or "")[:MOST_NAME] if isinstance(one, Mapping) else ""
        label = name or f"number {place}"
        try:
            rule = read_rule(one)
            if rule.name.casefold() in rules:
                raise ValueError("another rule has this name; rename one of them")
            if place > MOST_RULES:
                raise ValueError(f"a profile has at most {MOST_RULES} rules; remove some")
        except ValueError as problem:
            problems.setdefault(label, str(problem))
        else:
            rules[rule.name.casefold()] = rule
    return tuple(rules.values()), problems


def read_rule(written: Any) -> Rule:
    """One rule; raises ValueError with the reason and what is allowed."""
    if not isinstance(written, Mapping):
        raise ValueError(f"a rule is an object with {', '.join(_FIELDS)}")
    _known(written, _FIELDS, "a rule")
    name = written.get("name")
    if not isinstance(name, str) or not name.strip() or len(name) > MOST_NAME or not name.isprintable():
        raise ValueError(f'"name" is a text of 1 to {MOST_NAME} characters')
    ties = _when_said(written, "tie_breakers", _texts)
    rule = Rule(
        name=name.strip(),
        when=_condition(written.get("when")),
        policy=_when_said(written, "policy", _text) or "",
        tie_breakers=None if ties is None else tuple(ties),
        factors=_when_said(written, "factors", _weights),
        placement=_when_said(written, "placement", _text) or "",
        weights=_when_said(written, "score_weights", _weights) or (),
    )
    if not (
        rule.policy
        or rule.placement
        or rule.weights
        or rule.tie_breakers is not None
        or rule.factors is not None
    ):
        raise ValueError(
            "the rule sets nothing; name a policy, a placement, score_weights, factors or tie_breakers"
        )
    return rule


def _condition(written: Any) -> Condition:
    if not isinstance(written, Mapping) or not written:
        raise ValueError(
            '"when" is an object that names times, weekdays or a measure; without a condition, set the profile itself'
        )
    _known(written, ("times", "weekdays", *MEASURES), "when")
    return Condition(
        weekdays=tuple(sorted({_weekday(one) for one in _when_said(written, "weekdays", _texts) or ()})),
        times=tuple(_span(one) for one in _when_said(written, "times", _texts) or ()),
        bounds=tuple(_bound(name, written[name]) for name in MEASURES if name in written),
    )


def _bound(measure: str, written: Any) -> Bound:
    if not isinstance(written, Mapping):
        raise ValueError(f'"{measure}" is an object with at_least or at_most, such as {{"at_least": 50}}')
    _known(written, _OF_BOUND, measure)
    most = 100 if measure.endswith("_percent") else _MOST
    for name, value in written.items():
        if type(value) is not int or not 0 <= value <= (_MOST if name == "gpus" else most):
            raise ValueError(
                f'"{name}" of {measure} is a whole number from 0 to {_MOST if name == "gpus" else most}'
            )
    bound = Bound(measure, **written)
    if problem := _nonsense(bound):
        raise ValueError(problem)
    if (measure in LARGE) != (bound.gpus > 0):
        raise ValueError(
            f'{measure} names from how many GPUs a job is large, such as {{"gpus": 8, "at_least": 50}}'
            if measure in LARGE
            else f"{measure} has no gpus; those that have are {', '.join(LARGE)}"
        )
    return bound


def _nonsense(bound: Bound) -> str:
    """Why thresholds do not go together; "" where they do."""
    measure, least, most, leave = bound.measure, bound.at_least, bound.at_most, bound.leave
    if least < 0 and most < 0:
        return f"{measure} names neither at_least nor at_most"
    if 0 <= most < least:
        return f"{measure} is never at least {least} and at most {most}"
    if leave >= 0 and least >= 0 and most >= 0:
        return f"{measure} has a leave with at_least or at_most, not with both"
    if 0 <= least < leave or 0 <= leave < most:
        return f"{measure} leaves below at_least or above at_most, not within"
    return ""


def _span(text: str) -> tuple[int, int]:
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ValueError(f'{text!r} is not a time of day such as "22:00-06:00"')
    hours, minutes, to_hours, to_minutes = map(int, found.groups())
    begin, end = hours * 60 + minutes, to_hours * 60 + to_minutes
    if end > MINUTES_A_DAY or begin == end:
        raise ValueError(f"{text!r} has no end; a whole day is 00:00-24:00")
    return begin, end


def _weekday(text: str) -> int:
    if text not in WEEKDAYS:
        raise ValueError(f"{text!r} is not a weekday; there are {', '.join(WEEKDAYS)}")
    return WEEKDAYS.index(text)


def _known(written: Mapping[Any, Any], names: Sequence[str], where: str) -> None:
    for name in written:
        if name not in names:
            raise ValueError(f"{name!r} is not known in {where}; there are {', '.join(names)}")


def _when_said(written: Mapping[str, Any], name: str, read: Callable[[str, Any], Any]) -> Any:
    return read(name, written[name]) if name in written else None


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f'"{name}" is the name of one')
    return value


def _texts(name: str, value: Any) -> list[str]:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(one, str) for one in value):
        raise ValueError(f'"{name}" is a list of texts')
    return [*value]


def _weights(name: str, value: Any) -> tuple[tuple[str, int], ...]:
    if (
        not isinstance(value, Mapping)
        or not value
        or not all(
            isinstance(key, str) and type(weight) is int and 1 <= weight <= MOST_WEIGHT
            for key, weight in value.items()
        )
    ):
        raise ValueError(f'"{name}" is an object of whole numbers from 1 to {MOST_WEIGHT}')
    return tuple(sorted(value.items()))


def read_time_zone(name: str) -> ZoneInfo:
    """The time zone of this name; raises ValueError for one that this machine does not know."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is not a time zone; write one such as Europe/Berlin, or UTC") from error
