"""Declares the fields of a request, each once: its name, what it may hold, what it fills, how the form shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from scheduler.services.submission.fields import MAX_SECONDS, Inputs, read_moment, read_seconds

#: Reads the field of that name, which was given; keeps a problem in the inputs and returns a default.
Reader = Callable[[Any, str], Any]
T = TypeVar("T")


class Kind(StrEnum):
    """What a value may be; schema, form and reference page follow from it."""

    TEXT = "text of one line"
    LINES = "text"
    INTEGER = "whole number"
    FLAG = "true or false"
    CHOICE = "one of"
    AMOUNT = "number, or text with a unit"
    NAME_OR_NUMBER = "name or number"
    DURATION = "seconds, or text"
    MOMENT = "moment"
    TEXTS = "object of text"
    COUNTS = "object of whole numbers"
    TEXT_LIST = "list of text"
    OBJECT = "object"
    OBJECTS = "list of objects"
    TERMS = "list of lists of objects"
    ENTRIES = "list of numbers, text or objects"
    CHOICE_OR_OBJECT = "one of, or object"
    NUMBER_OR_OBJECT = "whole number, or object"


class Widget(StrEnum):
    """How the submit form shows a field."""

    INPUT = "input"
    LINES = "textarea"
    SELECT = "select"
    MOMENT = "moment"
    CHECK = "check"
    #: A part of the page of its own: `scheduler/fields/<name>.html`.
    OWN = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Where and how the submit form shows a field; `group` is a part of the page, "" for one beside another field.

    Within a group fields follow each other by `place`, and then in the order of their declaration.

    `words` are what a select offers for each value. `title` names the field where the label is a sentence. A copy of
    a job fills in what is `copied`, unless it is the default or the text `omits`.
    """

    label: str
    group: str
    place: int = 0
    title: str = ""
    widget: Widget = Widget.INPUT
    placeholder: str = ""
    hint: str = ""
    note: str = ""  # shown below a select, whatever is wrong with it
    mode: str = ""
    rows: int = 0
    code: bool = False
    words: tuple[tuple[str, str], ...] = ()
    omits: str = ""
    copied: bool = True


@dataclass(frozen=True, slots=True)
class NotOnForm:
    """A field that the submit form leaves out, and why."""

    because: str


@dataclass(frozen=True, slots=True)
class Spelling:
    """Another name for the same field."""

    name: str
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One field of a request.

    `least` and `most` bound a number, the characters of a text, or the entries of a list or object. `columns` maps
    each column that the field fills to the attribute it is filled from; a field that fills none says in `means` what
    becomes of it. `elsewhere` are names that other systems use for it, for the hint beside an unknown field.
    """

    name: str
    attribute: str = ""
    kind: Kind
    read: Reader
    help: str
    default: Any = None
    #: What the reference page says of a default that depends on something else.
    left_out: str = ""
    example: Any = None
    least: int | None = None
    most: int | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()
    #: Read also when it was left out: its default is looked up.
    always: bool = False
    #: False where what is read depends on the clock or on rows that others change, so that no reading is kept.
    lasting: bool = True
    #: The fields of the objects within it.
    schema: Schema[Any] | None = None
    spellings: tuple[Spelling, ...] = ()
    elsewhere: tuple[str, ...] = ()
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    means: str = ""
    form: Form | NotOnForm = NotOnForm("part of another field")

    @property
    def names(self) -> tuple[str, ...]:
        """The field's own name and its other spellings."""
        return (self.name, *(spelling.name for spelling in self.spellings))


# ---------------------------------------------------------------- kinds of fields


def declared(name: str, *, kind: Kind, read: Reader, help: str, default: Any = None, **more: Any) -> Any:
    """The attribute of a dataclass that one field of the request fills; `**more` are attributes of `Declared`."""
    field = Declared(name=name, kind=kind, read=read, help=help, default=default, **more)
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=type(default), metadata={"declared": field})
    return dataclasses.field(default=default, metadata={"declared": field})


def text(name: str, *, most: int, help: str, lines: bool = False, **more: Any) -> Any:
    """A text of at most `most` characters, of one line unless `lines`."""

    def read(inputs: Inputs, name: str) -> str:
        return inputs.text(name, most=most, lines=lines)

    kind = Kind.LINES if lines else Kind.TEXT
    return declared(name, kind=kind, read=read, help=help, most=most, **{"default": ""} | more)


def integer(
    name: str, *, least: int, most: int, help: str, within: Callable[[Any], int] | None = None, **more: Any
) -> Any:
    """A whole number; `within(inputs)` may lower the bound to what the fields before it allow."""
    default = more.pop("default", None)

    def read(inputs: Inputs, name: str) -> int | None:
        return inputs.integer(
            name, least=least, most=within(inputs) if within is not None else most, default=default
        )

    return declared(
        name, kind=Kind.INTEGER, read=read, help=help, least=least, most=most, default=default, **more
    )


def flag(name: str, *, default: bool, help: str, **more: Any) -> Any:
    def read(inputs: Inputs, name: str) -> bool:
        return inputs.flag(name, default=default)

    return declared(name, kind=Kind.FLAG, read=read, help=help, default=default, **more)


def choice(name: str, options: Iterable[str], *, default: str, help: str, **more: Any) -> Any:
    """One of `options`, in any case; an empty default is no choice at all."""
    choices = tuple(str(option) for option in options)

    def read(inputs: Inputs, name: str) -> str:
        return inputs.choice(name, choices, default=default)

    return declared(name, kind=Kind.CHOICE, read=read, help=help, default=default, choices=choices, **more)


def word(name: str, options: Sequence[str], *, default: str, help: str) -> Any:
    """One of `options`, in any case, kept as it is written here."""
    choices = tuple(options)

    def read(inputs: Inputs, name: str) -> str:
        return inputs.word(name, choices, default=default)

    return declared(name, kind=Kind.CHOICE, read=read, help=help, default=default, choices=choices)


def amount(
    name: str,
    convert: Callable[[Any], int],
    *,
    help: str,
    unit: str,
    unreadable: int | None = None,
    **more: Any,
) -> Any:
    """A number or text with a unit, kept as whole `unit`s; what cannot be read counts as `unreadable`."""

    def read(inputs: Inputs, name: str) -> Any:
        return inputs.read(name, convert, default=unreadable)

    return declared(name, kind=Kind.AMOUNT, read=read, help=help, unit=unit, **more)


def duration(name: str, *, help: str, most: int | None = None, least: int = 1, **more: Any) -> Any:
    """A time in any form that `read_seconds` knows, of at most `most` seconds; with `least` 0 also none at all."""

    def read(inputs: Inputs, name: str) -> int | None:
        if least == 0 and inputs.given(name) in (0, "0"):
            return 0
        seconds: int | None = inputs.read(name, read_seconds)
        if seconds is not None and most is not None and seconds > most:
            inputs.wrong(name, f"Must be at most {most} seconds.", code="out-of-range")
        return seconds

    most_kept = MAX_SECONDS if most is None else most
    return declared(
        name, kind=Kind.DURATION, read=read, help=help, least=least, most=most_kept, unit="seconds", **more
    )


def moment(name: str, *, help: str, **more: Any) -> Any:
    """A moment in ISO 8601."""

    def read(inputs: Inputs, name: str) -> Any:
        return inputs.read(name, read_moment)

    return declared(name, kind=Kind.MOMENT, read=read, help=help, **more)


# ---------------------------------------------------------------- rules between fields


@dataclass(frozen=True, slots=True)
class Rule:
    """A check, or a default, that needs several fields; its sentence is the docstring of the function."""

    check: Callable[[Any, Any], None]
    fields: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.check.__name__

    @property
    def sentence(self) -> str:
        return (self.check.__doc__ or "").partition("\n")[0]


def rule(*fields: str) -> Callable[[Callable[[Any, Any], None]], Rule]:
    """Marks `check(draft, inputs)` as a rule over these fields of the request."""
    return lambda check: Rule(check, fields)


# ---------------------------------------------------------------- schemas

#: Fields in their order, each with the checks that run after it.
Steps = list[tuple[Declared, tuple[Callable[[Any, Any], None], ...]]]


class Schema(Generic[T]):
    """The fields of a dataclass that are declared, and how a payload is read into one.

    Fields are read in the order of their declaration. A rule runs as soon as all fields that it compares are read,
    and never before a rule that is listed ahead of it; so do problems follow each other.
    """

    def __init__(self, made: type[T], rules: Sequence[Rule] = ()) -> None:
        self.made = made
        self.rules: Final = tuple(rules)
        self.fields: Final = tuple(
            dataclasses.replace(field.metadata["declared"], attribute=field.name)
            for field in dataclasses.fields(made)  # type: ignore[arg-type]
            if "declared" in field.metadata
        )
        self.by_name: Final = {name: field for field in self.fields for name in field.names}
        self.names: Final = frozenset(self.by_name)
        self._known = tuple(self.by_name)
        self._steps = self._in_order(self.fields, self.rules)

    def _in_order(self, fields: Iterable[Declared], rules: Iterable[Rule]) -> Steps:
        """Each field with the rules that run after it."""
        waiting = list(rules)
        read: set[str] = set()
        steps = []
        for field in fields:
            read |= set(field.names)
            ready = []
            while waiting and read.issuperset(waiting[0].fields):
                ready.append(waiting.pop(0).check)
            steps.append((field, tuple(ready)))
        if waiting:
            raise LookupError(
                f"{waiting[0].name} compares {waiting[0].fields}; {self.made.__name__} has others"
            )
        return steps

    def steps_of(self, names: Collection[str]) -> Steps:
        """How to read these fields alone; raises LookupError where a rule compares one of them with another field."""
        rules = [rule for rule in self.rules if not set(names).isdisjoint(rule.fields)]
        return self._in_order([field for field in self.fields if field.name in names], rules)

    def read_into(self, draft: T, inputs: Inputs, steps: Steps | None = None) -> None:
        """Fill `draft` with what was given, or with the fields of `steps` alone; problems are kept in `inputs`."""
        given = inputs.given
        for field, rules in self._steps if steps is None else steps:
            if field.always or given(field.name) is not None:
                setattr(draft, field.attribute, field.read(inputs, field.name))
            for check in rules:
                check(draft, inputs)

    def read(self, payload: Mapping[str, Any], *, under: str) -> tuple[T, Inputs]:
        """One object within a request: what was read, and its inputs with their problems."""
        inputs = Inputs(payload, under=under)
        inputs.refuse_unknown(self._known)
        draft = self.made()
        self.read_into(draft, inputs)
        return draft, inputs

    def item(self, inputs: Inputs, value: Any, at: str, *, has: str) -> T | None:
        """The object at a place within a field; None where it is none, a problem that says what it `has`."""
        if not isinstance(value, Mapping):
            inputs.wrong(at, f"Must be an object with {has}.", code="not-an-object")
            return None
        read, one = self.read(value, under=f"{inputs.under}{at}/")
        inputs.problems += one.problems
        return read

    def columns(self) -> dict[str, str]:
        """Column -> the attribute, with dots, that it is filled from."""
        return {
            column: source or field.attribute
            for field in self.fields
            for column, source in field.columns.items()
        }

    def called_elsewhere(self) -> dict[str, str]:
        """What other systems call a field -> its name here."""
        return {other: field.name for field in self.fields for other in field.elsewhere}


def kept_objects(
    inputs: Inputs, name: str, schema: Schema[Any], *, most: int, has: str
) -> list[dict[str, Any]]:
    """A list of up to `most` objects of a schema, in the form that the job's row keeps; each `has` these fields."""
    items = enumerate(inputs.listing(name, most=most))
    found = [schema.item(inputs, value, f"{name}/{number}", has=has) for number, value in items]
    return [one.kept() for one in found if one is not None]
