"""Admin pages show the times of sentences and JSON in the reader's zone, and never as they are stored."""

from __future__ import annotations

import re

import pytest
from django.test import Client, RequestFactory
from django.urls import reverse

from accounts.admin.times import readable_times
from accounts.models import User
from accounts.services import audit
from tests.support.factories import AdminFactory, JobFactory

AT = "2026-01-31T23:30:00Z"


@pytest.fixture
def tokyo(db: None) -> User:
    return AdminFactory(time_zone="Asia/Tokyo")


def test_texts_have_the_readers_zone_and_forms_stay(tokyo: User) -> None:
    request = RequestFactory().get("/admin/")
    request.user = tokyo
    json = f"<td>{{&quot;at&quot;: &quot;{AT}&quot;}}</td>"
    page = f'<p title="a > b {AT}">Begins at {AT}.</p><textarea>{AT}</textarea>{json}'

    shown = readable_times(request, page)

    assert shown.count("2026-02-01 08:30:00 JST</time>") == 2
    assert f"<textarea>{AT}</textarea>" in shown
    assert f'title="a > b {AT}"' in shown
    assert readable_times(request, "on 2026-02-31T10:00:00Z") == "on 2026-02-31T10:00:00Z"


def test_no_page_of_a_row_has_a_stored_time(tokyo: User) -> None:
    client = Client()
    client.force_login(tokyo, backend="accounts.backends.PasswordBackend")
    job = JobFactory(reason_text=f"Begins at {AT} or later.", reason_details={"begin_at": AT})
    event = audit.record(by=tokyo, action="job.hold", thing=job, reason=f"until {AT}", after={"ends_at": AT})

    for address in (
        reverse("admin:scheduler_job_change", args=[job.pk]),
        reverse("admin:accounts_auditevent_changelist"),
        reverse("admin:accounts_auditevent_change", args=[event.pk]),
    ):
        page = client.get(address).content.decode()
        assert "2026-02-01 08:30:00 JST" in page, address
        assert AT not in re.sub(r'(?:datetime|title|value)="[^"]*"', "", page), address
