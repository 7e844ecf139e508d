"""The errors a person can meet: each names the thing, the reason and the way out."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One wrong input: where it stands (`tasks`, `env/PATH`), what is wrong, what to do instead."""

    field: str
    message: str
    code: str = "invalid"


@dataclass
class MusterError(Exception):
    """A refusal in a person's words; nothing was written when it is raised.

    `code` is stable and machine-readable, `message` is one or two sentences, `way_out` says what to do.
    Doors turn it into problem+json, a form error or a CLI line; `status` is the HTTP status they use.
    """

    message: str
    code: str = "error"
    way_out: str = ""
    problems: list[FieldProblem] = field(default_factory=list)
    status: int = 400
    extra: dict[str, object] = field(default_factory=dict)
    #: (verb, thing) of a permission that was not given, which makes the refusal an audit row.
    refused: tuple[str, object] | None = None

    def __str__(self) -> str:
        return f"{self.message} {self.way_out}".strip()


@dataclass
class InvalidInput(MusterError):
    """The input itself is wrong; `problems` name every field at once, not only the first."""

    code: str = "invalid"
    status: int = 422


@dataclass
class NotAllowed(MusterError):
    """The person may see the thing but not do this to it; the door writes an audit row for the denial."""

    code: str = "not-allowed"
    status: int = 403


@dataclass
class NotFound(MusterError):
    """No such thing, or one that this person may not know of: the two look alike on purpose."""

    code: str = "not-found"
    status: int = 404


@dataclass
class Conflict(MusterError):
    """The thing is no longer as the caller saw it, or its state does not allow the verb."""

    code: str = "conflict"
    status: int = 409


@dataclass
class TooMany(MusterError):
    """A limit on size or rate was met."""

    code: str = "too-many"
    status: int = 429
