"""Who is behind what happens now: request id, address, token; set by doors, read by audit and permissions."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Token(Protocol):
    """What an API token narrows: its person, perhaps one project, and scopes."""

    prefix: str
    user_id: int
    project_id: int | None
    scopes: Any
    user: Any


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a service cannot know from its arguments; empty outside a request.

    `address` is `local` on the command line. The `token_*` fields narrow what `token_user_id` may do.
    """

    request_id: str = ""
    address: str = ""
    #: The peer says that it forwards, so that a loopback address is not the person at this machine.
    proxied: bool = False
    on_behalf_of: str = ""
    token_prefix: str = ""
    token_user_id: int | None = None
    token_project_id: int | None = None
    token_scopes: frozenset[str] | None = None


class RequestIsOver(RuntimeError):
    """A right was asked about after its request had been answered, as by a stream that asks while it is sent."""


NOTHING_KNOWN = RequestContext()
#: None is a request that has been answered: nothing may be asked about it any more.
_current: ContextVar[RequestContext | None] = ContextVar("muster_request_context", default=NOTHING_KNOWN)


def current() -> RequestContext:
    """What is known of the request under way; raises RequestIsOver in what is left of an answered one."""
    known = _current.get()
    if known is None:
        raise RequestIsOver(
            "The request has been answered: ask what its caller may see before the answer is returned."
        )
    return known


def update(**changes: Any) -> None:
    """Add to what is known of the request under way; the middleware forgets it at the request's end."""
    _current.set(replace(current(), **changes))


def use_token(token: Token) -> None:
    """Act as this token until the request ends: its prefix is audited, its limits narrow permissions.

    The person it signs in carries its limits too, into threads and tasks that do not know of the request.
    """
    update(
        token_prefix=token.prefix,
        token_user_id=token.user_id,
        token_project_id=token.project_id,
        token_scopes=frozenset(token.scopes),
    )
    token.user.held_by = token


def over(pieces: Iterable[T]) -> Iterator[T]:
    """The rest of an answer, each piece made while nothing may be asked about its request.

    A stream is read after the request's context has ended. Rights asked there would be those of the whole
    person, whatever their token is held to; so the question itself fails.
    """
    rest = iter(pieces)
    while True:
        before = _current.get()
        _current.set(None)
        try:
            piece = next(rest)
        except StopIteration:
            return
        finally:
            _current.set(before)
        yield piece


async def over_async(pieces: AsyncIterable[T]) -> AsyncIterator[T]:
    """The same for an asynchronous answer."""
    rest = aiter(pieces)
    while True:
        before = _current.get()
        _current.set(None)
        try:
            piece = await anext(rest)
        except StopAsyncIteration:
            return
        finally:
            _current.set(before)
        yield piece


@contextmanager
def acting(**known: Any) -> Iterator[RequestContext]:
    """A context of its own for a block: `with acting(address="local"): ...`."""
    before = _current.get()
    # Put back by value: a token of `set` is refused when an async hop changed the context in between.
    _current.set(RequestContext(**known))
    try:
        yield current()
    finally:
        _current.set(before)
