"""Rules as values: conditions about the time and about what waits, and what a rule sets while they hold."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

#: Days as rules name them, in the order of `datetime.weekday`.
WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

#: What a bound may be about. Jobs count that could start: not held, dependent, too early or in a paused queue.
MEASURES: Final = (
    "pending_jobs",  # jobs
    "gpu_jobs_percent",  # of the pending jobs, those that ask for GPUs
    "large_jobs_percent",  # of the pending jobs, those that ask for `gpus` or more in all
    "large_gpus_percent",  # of the GPUs that pending jobs ask for, those that such jobs ask for
    "allocated_gpus_percent",  # of the healthy GPUs of nodes that are up
    "allocated_cpus_percent",  # of the CPUs of nodes that are up
)
#: Those that name a number of GPUs.
LARGE: Final = ("large_jobs_percent", "large_gpus_percent")

MINUTES_A_DAY: Final = 24 * 60
#: How long a choice is kept at least, unless the profile says otherwise.
HOLD_SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class Bound:
    """A condition on a measure: `at_least`, `at_most` or both; -1 = not said.

    `leave` is where the condition ends once its rule is in force: below it for `at_least`, above it for `at_most`.
    """

    measure: str
    at_least: int = -1
    at_most: int = -1
    leave: int = -1
    gpus: int = 0

    def holds(self, value: int, *, in_force: bool) -> bool:
        """Whether the value is within the bound; `in_force`: the rule was chosen before."""
        least, most = self.at_least, self.at_most
        if in_force and self.leave >= 0:
            least, most = (self.leave, most) if least >= 0 else (least, self.leave)
        return (least < 0 or value >= least) and (most < 0 or value <= most)


@dataclass(frozen=True, slots=True)
class Condition:
    """When a rule applies: at one of these times, and within all of these bounds."""

    #: Numbers of weekdays; () = every day.
    weekdays: tuple[int, ...] = ()
    #: (from, until) in minutes since midnight; one that ends before it begins goes over midnight; () = all day.
    times: tuple[tuple[int, int], ...] = ()
    bounds: tuple[Bound, ...] = ()

    @property
    def names_time(self) -> bool:
        return bool(self.weekdays or self.times)

    def is_time(self, at: datetime) -> bool:
        """Whether this local time is meant. What goes over midnight belongs to the day on which it began."""
        minute = at.hour * 60 + at.minute
        today, yesterday = at.weekday(), (at - timedelta(days=1)).weekday()
        for begin, end in self.times or ((0, MINUTES_A_DAY),):
            if begin < end:
                if begin <= minute < end and self._is_day(today):
                    return True
            elif (minute >= begin and self._is_day(today)) or (minute < end and self._is_day(yesterday)):
                return True
        return False

    def _is_day(self, number: int) -> bool:
        return not self.weekdays or number in self.weekdays


@dataclass(frozen=True, slots=True)
class Ordering:
    """The settings of a policy that rules may change."""

    name: str
    tie_breakers: tuple[str, ...] = ()
    factors: tuple[tuple[str, int], ...] = ()
    priority_by: str = "number"
    placement: str = "best_fit"
    weights: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """What a profile sets while a condition holds; what a rule does not name stays as the profile has it.

    A rule that names a policy names the whole order: tie-breakers and factors are then its own. A rule that names a
    placement has that placement's weights, unless it names weights too.
    """

    name: str
    when: Condition
    policy: str = ""
    tie_breakers: tuple[str, ...] | None = None
    factors: tuple[tuple[str, int], ...] | None = None
    placement: str = ""
    weights: tuple[tuple[str, int], ...] = ()

    def over(self, own: Ordering) -> Ordering:
        """The profile's own settings with those of this rule in their place."""
        return Ordering(
            name=self.policy or own.name,
            tie_breakers=_first(self.tie_breakers, () if self.policy else own.tie_breakers),
            factors=_first(self.factors, () if self.policy else own.factors),
            priority_by="number" if self.policy or self.factors else own.priority_by,
            placement=self.placement or own.placement,
            weights=self.weights or (() if self.placement else own.weights),
        )

    def as_dict(self) -> dict[str, Any]:
        """The rule as `reading.read_rule` takes it, in values of JSON."""
        when: dict[str, Any] = {}
        if self.when.weekdays:
            when["weekdays"] = [WEEKDAYS[number] for number in self.when.weekdays]
        if self.when.times:
            when["times"] = [f"{_clock(begin)}-{_clock(end)}" for begin, end in self.when.times]
        for bound in self.when.bounds:
            said = {"at_least": bound.at_least, "at_most": bound.at_most, "leave": bound.leave}
            when[bound.measure] = {name: value for name, value in said.items() if value >= 0}
            if bound.gpus:
                when[bound.measure]["gpus"] = bound.gpus
        written: dict[str, Any] = {"name": self.name, "when": when}
        if self.policy:
            written["policy"] = self.policy
        if self.tie_breakers is not None:
            written["tie_breakers"] = [*self.tie_breakers]
        if self.factors is not None:
            written["factors"] = dict(self.factors)
        if self.placement:
            written["placement"] = self.placement
        if self.weights:
            written["score_weights"] = dict(self.weights)
        return written


@dataclass(frozen=True, slots=True)
class Adaptive:
    """The rules of a profile, first to last, and which of them is in force.

    `own` are the settings of the profile itself, in force while no rule applies. A choice is kept for `hold_seconds`
    at least. `rule` is the rule in force since `since_ms`; "" = the profile's own settings are.
    """

    profile: str
    rules: tuple[Rule, ...]
    own: Ordering
    time_zone: str = "UTC"
    hold_seconds: int = HOLD_SECONDS
    rule: str = ""
    since_ms: int = 0

    def ordering(self, rule: str) -> Ordering:
        """The settings under this rule, or the profile's own for "" and for a rule that is not there."""
        return next((one.over(self.own) for one in self.rules if one.name == rule), self.own)


def _first(said: tuple[Any, ...] | None, otherwise: tuple[Any, ...]) -> tuple[Any, ...]:
    return otherwise if said is None else said


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"
