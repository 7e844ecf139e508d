"""Quotas that Slurm enforces itself: an account, a QOS with group limits, and the members' associations.

Account and QOS of project 7 are both called `project-7`. Jobs that members send there, from Muster or not, run
under that account and inherit its QOS. The limits are on the QOS and not on the account, because slurmrestd can
change a QOS cleanly, but an account's association only when it makes it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Final

from django.conf import settings

from quotas.core.external_limits import MEMBER, Bound, Mapped, with_members
from quotas.core.units import slurm
from quotas.models import Provider
from quotas.providers.external import ExternalQuotaProvider, Found, Scope
from quotas.providers.slurm.commands import CommandTransport
from quotas.providers.slurm.rest import RestTransport
from quotas.providers.slurm.transport import Record, Transport

#: Names of people that Slurm takes as they are, and that no command line can mistake for something else.
_USER: Final = re.compile(r"[a-z0-9_][a-z0-9_.@-]{0,62}")


class SlurmQuotaProvider(ExternalQuotaProvider):
    name = Provider.SLURM.value

    def __init__(self, transport: Transport | None = None) -> None:
        self.transport = transport or transport_from_settings()

    @property
    def missing_text(self) -> str:
        if settings.EXECUTOR_SLURM_AUTH_TOKEN or settings.SLURM_COMMAND or shutil.which("sacctmgr"):
            return ""
        return (
            "No connection to Slurm is configured: set EXECUTOR_SLURM_AUTH_TOKEN for slurmrestd, or SLURM_COMMAND"
            " where sacctmgr is not on this machine."
        )

    def values(self, bounds: Sequence[Bound], scope: Scope) -> Mapped:
        mapped = slurm.values_of(bounds)
        names = [name.lower() for name in scope.members]  # as Slurm keeps them
        good = [name for name in names if _USER.fullmatch(name)]
        bad = tuple(f"member {name}" for name in names if not _USER.fullmatch(name))
        return Mapped(with_members(mapped.values, good), mapped.left_out + bad)

    def read(self, scope: Scope) -> Found:
        record = self.transport.read(account_name(scope.project_id))
        limits = {key: value for key, value in record.limits.items() if slurm.is_ours(key)}
        members = [user for user, has_qos in record.members.items() if has_qos]
        return Found(with_members(limits, members), record.used, record.facts, record)

    def write(self, scope: Scope, found: Found, changes: Mapping[str, int | None]) -> None:
        """Account first, then its QOS, then people; a run that stops in between is taken up by the next."""
        name, record = account_name(scope.project_id), found.raw
        assert isinstance(record, Record)
        limits = {key: value for key, value in changes.items() if not key.startswith(MEMBER)}
        if limits or not record.has_qos:
            self.transport.set_limits(name, record, limits)
        if not record.has_account:
            self.transport.make_account(name, scope.slug)
        people = {key.removeprefix(MEMBER): value for key, value in changes.items() if key.startswith(MEMBER)}
        if joining := [user for user, value in people.items() if value is not None]:
            self.transport.add_members(name, record, joining)
        if leaving := [user for user, value in people.items() if value is None]:
            self.transport.remove_members(name, leaving)

    def show(self, key: str, value: int | None) -> str:
        return slurm.show(key, value)


def account_name(project_id: int) -> str:
    """Lower case, for so Slurm keeps it."""
    return f"{settings.SLURM_ACCOUNT_PREFIX}{project_id}".lower()


def transport_from_settings() -> Transport:
    """REST where there is a token for it, else Slurm's own commands."""
    if settings.EXECUTOR_SLURM_AUTH_TOKEN:
        return RestTransport(
            settings.EXECUTOR_SLURM_REST_API_URL,
            settings.EXECUTOR_SLURM_AUTH_TOKEN,
            user=settings.EXECUTOR_SLURM_USER,
            version=settings.SLURM_REST_VERSION,
            cluster=settings.SLURM_CLUSTER,
        )
    return CommandTransport(settings.SLURM_COMMAND, cluster=settings.SLURM_CLUSTER)
