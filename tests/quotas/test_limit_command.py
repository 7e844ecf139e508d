"""`manage.py limit`: the same limits from the command line."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from accounts.models import AuditEvent
from quotas.models import Quota
from tests.support.factories import OrganizationFactory, the_cast

pytestmark = pytest.mark.django_db


def limit(*words: str) -> str:
    out = StringIO()
    call_command("limit", *words, stdout=out)
    return out.getvalue()


def test_a_limit_is_set_listed_changed_and_taken_away() -> None:
    cast = the_cast()
    cast.project.organization = OrganizationFactory(slug="lab")
    cast.project.save()
    why = ("--by", "operator", "--reason", "as agreed")

    made = limit(
        "set", "memory_mib", "hard=500Gi", "nominal=none", "--project", "vision", "--user", "owner", *why
    )
    limit("set", "memory_mib", "nominal=1024", "converge-after-seconds=60", "--organization", "lab", *why)

    line = Quota.objects.get(user=cast.owner)
    assert (line.hard, line.nominal) == (512_000, None)
    assert f"{line.pk}  owner in project vision, memory_mib: 0 MiB in use of 500 GiB, 500 GiB free" in made
    assert [row.split(",")[0].split("  ")[-1] for row in limit("list", "--path", "vision").splitlines()] == [
        "owner in project vision", "organization lab",
    ]  # fmt: skip
    assert "1 GiB free" in limit("list", "--user", "owner")
    assert limit("list", "--user", "lead") == "There is no such limit.\n"
    with pytest.raises(CommandError, match="There is already a limit"):
        limit(
            "set", "memory_mib", "hard=1", "--project", "vision", "--user", "owner", "--generation", "0", *why
        )
    assert "is removed" in limit("remove", str(line.pk), *why)
    assert not Quota.objects.filter(user=cast.owner).exists()
    assert AuditEvent.objects.filter(reason="as agreed", actor=cast.operator).count() == 3


@pytest.mark.parametrize("value", ["hard", "hard=many", "used=5", "enforce=maybe"])
def test_a_value_that_means_nothing_is_refused_in_words(value: str) -> None:
    the_cast()

    with pytest.raises(CommandError):
        limit("set", "cpu_millis", value, "--project", "vision", "--reason", "why")
