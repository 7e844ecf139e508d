"""Rules of fair share at run time: what is in force, exact sums after a change, a preview, and the audit row."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import AuditEvent, User
from quotas.core.decay import Decay
from quotas.models import FairShareRules, ShareUsage
from quotas.selectors.fair_share_source import share_rules, share_source, use_at
from quotas.services.share_rules import set_share_rules
from quotas.services.shares import recount_shares
from tests.scheduler.state.load.test_fair_share import Sharing
from tests.support.factories import bearer, the_cast

pytestmark = pytest.mark.django_db

URL = "/api/v1/shares/rules"
TWO_MINUTES = 120


def a_site_with_use() -> Sharing:
    """30 GPU-hours that ended in the last two days, kept in slices."""
    world = Sharing()
    for number in range(3):
        world.used(hours=5, gpus=2, ago=timedelta(hours=1 + 16 * number))
    recount_shares()
    return world


def truth(decay: Decay, at: float) -> dict:
    return {
        pair: pytest.approx(use, rel=1e-6, abs=1e-3)
        for pair, use in share_source().used(decay=decay, at=at, running_only=False).items()
    }


def test_a_half_life_of_two_minutes_shows_no_nonsense_finding_20(settings, capsys) -> None:
    a_site_with_use()
    settings.MUSTER_FAIRSHARE_HALF_LIFE_SECONDS = TWO_MINUTES
    User.objects.create_superuser("root", "root@example.org", "x", site_role="admin")

    call_command("share", "--tree", "--json")
    lines = json.loads(capsys.readouterr().out)

    assert max(line["used_gpu_hours"] for line in lines) <= 30
    at = timezone.now().timestamp()
    decay = Decay(half_life_seconds=TWO_MINUTES)
    assert use_at(at, decay=decay) == truth(decay, at)


@pytest.mark.parametrize("half_life", [TWO_MINUTES, 3600, 30 * 86_400])
def test_a_change_is_exact_at_once_and_after_the_recount(half_life: int) -> None:
    a_site_with_use()
    by = the_cast().operator

    set_share_rules(changes={"half_life_seconds": half_life}, by=by, reason="a trial")

    decay, _ = share_rules()
    at = timezone.now().timestamp()
    assert decay.half_life_seconds == half_life
    assert use_at(at, decay=decay) == truth(decay, at)
    assert recount_shares() > 0
    assert set(ShareUsage.objects.values_list("half_life_seconds", flat=True)) == {half_life}
    assert use_at(at, decay=decay) == truth(decay, at)
    assert recount_shares() == 0


def test_a_slice_with_parts_of_two_half_lives_is_never_read() -> None:
    world = a_site_with_use()
    set_share_rules(changes={"half_life_seconds": 7200}, by=the_cast().operator, reason="a trial")
    from quotas.selectors.fair_share_source import Held
    from quotas.services.shares import count_use

    now = timezone.now().timestamp()
    first = ShareUsage.objects.order_by("-starts_at").first()
    begins = first.starts_at.timestamp()
    count_use([Held(first.project_id, first.user_id, begins, begins + 60, 1.0, 0.0, 0.0)])

    first.refresh_from_db()
    assert first.half_life_seconds == 0
    decay = Decay(half_life_seconds=7200)
    assert use_at(now, decay=decay) == truth(decay, now)
    assert world.project.pk == first.project_id


def test_rows_go_before_settings_and_a_reset_puts_these_in_force(settings) -> None:
    by = the_cast().operator
    settings.MUSTER_FAIRSHARE_HALF_LIFE_SECONDS = 5 * 3600

    assert share_rules()[0].half_life_seconds == 5 * 3600
    set_share_rules(changes={"half_life_seconds": 7200, "cpu_weight": 0.5}, by=by, reason="cores count")
    assert (share_rules()[0].half_life_seconds, share_rules()[1].cpu) == (7200, 0.5)
    settings.MUSTER_FAIRSHARE_HALF_LIFE_SECONDS = 6 * 3600
    assert share_rules()[0].half_life_seconds == 7200
    call_command("share_rules", "--reset", "--by", by.username, "--reason", "trial over")
    assert share_rules()[0].half_life_seconds == 6 * 3600
    assert [event.action for event in AuditEvent.objects.filter(action__startswith="share.").order_by("pk")] == [
        "share.set_rules", "share.reset_rules",
    ]  # fmt: skip


def test_the_api_reads_previews_and_changes_with_a_reason_and_refuses_who_may_not(client: Client) -> None:
    cast = the_cast()
    for person, status in ((cast.owner, 403), (cast.lead, 403), (cast.auditor, 403), (cast.operator, 200)):
        answer = client.patch(
            URL, data=json.dumps({"half_life_seconds": 7200, "reason": "longer memory"}),
            content_type="application/json", headers=bearer(person, "quota:write"),
        )  # fmt: skip
        assert answer.status_code == status, (person, answer.content)
    event = AuditEvent.objects.get(action="share.set_rules")
    assert (event.before, event.after, event.reason) == (
        {"half_life_seconds": 86_400}, {"half_life_seconds": 7200}, "longer memory",
    )  # fmt: skip

    read = client.get(URL, headers=bearer(cast.owner, "quota:read"))
    assert (read.json()["source"], read.json()["settings"]["half_life_seconds"]) == ("database", 86_400)
    stale = client.patch(
        URL, data=json.dumps({"cpu_weight": 1, "reason": "cores"}), content_type="application/json",
        headers={**bearer(cast.operator, "quota:write"), "If-Match": '"share-rules-0"'},
    )  # fmt: skip
    assert stale.status_code == 412


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"half_life_seconds": 5}, "half_life_seconds"),
        ({"window_seconds": 10**9}, "window_seconds"),
        ({"gpu_weight": 0}, "gpu_weight"),
        ({"mode": "linear"}, "mode"),
        ({"colour": 1}, "colour"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_field(client: Client, changes: dict, field: str) -> None:
    answer = client.patch(
        URL, data=json.dumps({**changes, "reason": "x"}), content_type="application/json",
        headers=bearer(the_cast().operator, "quota:write"),
    )  # fmt: skip

    assert answer.status_code in (400, 422)
    assert field in answer.content.decode()
    assert not FairShareRules.objects.exists()


def test_a_preview_shows_the_order_of_waiting_jobs_and_changes_nothing(client: Client) -> None:
    """A month ago counts nothing with a day's half-life, and a lot with none."""
    world = a_site_with_use()
    other = world.job("other", user=world.person)
    operator = the_cast().operator

    answer = client.post(
        f"{URL}/preview", data=json.dumps({"mode": "window"}), content_type="application/json",
        headers=bearer(operator, "quota:read"),
    )  # fmt: skip

    body = answer.json()
    (project,) = [one for one in body["projects"] if one["id"] == world.project.pk]
    assert project["used_hours_then"] == pytest.approx(30, rel=1e-6)
    assert project["used_hours_now"] < 29
    assert [job["number"] for job in body["jobs"]] == [other.number]
    assert not FairShareRules.objects.exists()


def test_the_page_is_for_operators_and_previews_saves_and_says_what_is_in_force(client: Client) -> None:
    cast = the_cast()
    client.force_login(cast.owner, backend="accounts.backends.PasswordBackend")
    assert client.get(reverse("share-rules")).status_code == 403
    client.force_login(cast.operator, backend="accounts.backends.PasswordBackend")
    form = {"mode": "exponential", "half_life": "48", "window": "7", "gpu": "1", "cpu": "0", "memory": "0",
            "reason": "longer memory", "seen": "0"}  # fmt: skip

    assert "settings MUSTER_FAIRSHARE_* are in force" in client.get(reverse("share-rules")).content.decode()
    assert (
        "nothing is changed" in client.post(reverse("share-rules"), form | {"do": "preview"}).content.decode()
    )
    assert not FairShareRules.objects.exists()
    bad = client.post(reverse("share-rules"), form | {"do": "save", "half_life": "soon"})
    assert (bad.status_code, "The half-life is 60 to" in bad.content.decode()) == (422, True)
    assert client.post(reverse("share-rules"), form | {"do": "save"}).status_code == 302
    assert share_rules()[0].half_life_seconds == 48 * 3600
    crossed = client.post(reverse("share-rules"), form | {"do": "save", "half_life": "12"})
    assert (crossed.status_code, "were changed since" in crossed.content.decode()) == (422, True)
    assert "Set here on" in client.get(reverse("share-rules")).content.decode()


def test_the_command_previews_and_needs_an_operator(capsys) -> None:
    a_site_with_use()

    call_command("share_rules", "--mode", "window", "--preview")
    assert "0 of 0 waiting jobs would have another place." in capsys.readouterr().out
    with pytest.raises(CommandError, match="name an operator with --by"):
        call_command("share_rules", "--half-life-seconds", "7200", "--reason", "x")
    assert not FairShareRules.objects.exists()


def test_a_person_has_a_weight_for_turns_that_operators_alone_may_see_and_set(client: Client) -> None:
    cast = the_cast()
    path = f"/api/v1/shares/user/{cast.owner.pk}"

    assert client.get(path, headers=bearer(cast.lead, "quota:read")).status_code == 404
    answer = client.patch(
        path, data=json.dumps({"share_weight": 3, "reason": "paid for it"}), content_type="application/json",
        headers=bearer(cast.operator, "quota:write"),
    )  # fmt: skip

    cast.owner.refresh_from_db()
    assert (answer.status_code, cast.owner.share_weight) == (200, 3)


def test_the_form_of_a_share_says_from_which_use_a_limit_binds(client: Client) -> None:
    world = a_site_with_use()
    client.force_login(the_cast().operator, backend="accounts.backends.PasswordBackend")

    page = client.get(reverse("share-edit", args=["project", world.project.pk])).content.decode()

    assert "A limit of 10 % binds from" in page
