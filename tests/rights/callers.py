"""Every kind of caller, how each signs in, and whose marks each may never see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from django.test import Client
from django.utils import timezone

from accounts.models import ApiToken, User
from accounts.scopes import SCOPES
from accounts.services.tokens import issue_token
from tests.rights.world import FOREIGN, MARKS, OTHER, VISION, World

#: What takes a plan or a whole document to answer; those who have the same rights by another door do not ask again.
COSTLY: Final = ("/why", "/schema", "/preview", "/efficiency")
ONE_OF_A_KIND: Final = (
    "token of owner",
    "token of owner held to a project",
    "token of admin held to a project",
)


@dataclass(frozen=True)
class Caller:
    """Somebody at a door. `forbidden` are the marks of projects that nothing they read may hold."""

    name: str
    client: Client
    forbidden: tuple[str, ...]
    user: User | None = None
    token: str = ""
    #: Signed in, with a scope or a role that some route asks for.
    any_rights: bool = True

    def asks(self, route: str) -> bool:
        """Whether an answer to this caller could differ from that to another one who asks."""
        if self.token and (not route.startswith("api/") or route.endswith(COSTLY)):
            return self.name in ONE_OF_A_KIND  # where tokens are not looked at, all of them are nobody
        # Nothing is forbidden to those who may see everything; the tests of the admin's pages look at the rest.
        return bool(self.forbidden) or self.name == "session of admin" or not route.startswith("admin/")

    @property
    def once(self) -> bool:
        """Whether one address of a route is enough: everything is theirs, or nothing at all."""
        return not self.forbidden or not self.any_rights

    @property
    def filters(self) -> bool:
        """Whether filters and formats are tried too: by one of each set of rights."""
        return self.name in ONE_OF_A_KIND or self.name in ("session of colleague", "session of stranger")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def _client() -> Client:
    """A program on another machine: what this one may read at health and metrics is no business of anybody else."""
    return Client(raise_request_exception=False, REMOTE_ADDR="10.0.0.7")


def callers(world: World) -> list[Caller]:
    """Sessions, tokens, tokens held to a project, tokens that are no good, each role, strangers and nobody."""
    cast = world.cast
    everybody = cast.people() | {"disabled": world.disabled}
    sees = {
        "owner": (FOREIGN,), "colleague": (OTHER, FOREIGN), "lead": (OTHER, FOREIGN), "viewer": (OTHER, FOREIGN),
        "stranger": MARKS, "disabled": MARKS, "operator": (), "auditor": (), "admin": (),
    }  # fmt: skip
    found = [Caller("nobody", _client(), MARKS, any_rights=False)]
    for name, user in everybody.items():
        client = _client()
        client.force_login(user, backend="accounts.backends.PasswordBackend")
        found.append(Caller(f"session of {name}", client, sees[name], user, any_rights=user.is_active))
        if name not in ("disabled", "colleague"):
            found.append(_by_token(f"token of {name}", user, ["admin"], sees[name]))
    for name in ("owner", "operator", "auditor", "admin"):
        held = _by_token(
            f"token of {name} held to a project", everybody[name], ["admin"], (OTHER, FOREIGN), world
        )
        found.append(held)
    every_scope = [scope for scope in SCOPES if scope != "admin"]
    found.append(_by_token("token of owner with each scope", cast.owner, every_scope, sees["owner"]))
    found.append(_by_token("token of owner with one scope", cast.owner, ["audit:read"], MARKS))
    for name, change in (
        ("expired", {"expires_at": timezone.now() - timedelta(minutes=1)}),
        ("revoked", {"revoked_at": timezone.now()}),
    ):
        bad = _by_token(f"{name} token of admin", cast.admin, ["admin"], MARKS)
        ApiToken.objects.filter(prefix=bad.token.split("_")[2]).update(**change)
        found.append(replace(bad, any_rights=False))
    found.append(Caller("a token nobody made", _client(), MARKS, token="muster_pat_x", any_rights=False))
    return found


def _by_token(
    name: str, user: User, scopes: Iterable[str], forbidden: tuple[str, ...], held_in: World | None = None
) -> Caller:
    project = held_in[VISION].project if held_in is not None else None
    _, plain = issue_token(user=user, by=user, name="a test", scopes=list(scopes), project=project)
    return Caller(name, _client(), forbidden, user, plain)
