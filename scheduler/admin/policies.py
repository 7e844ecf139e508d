"""Admin pages of policies: versions of profiles with what differs, and shadow runs of drafts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.db.models import F
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from accounts import permissions
from accounts.admin.base import table
from accounts.models import User
from infra.plain_text import one_line
from scheduler.admin.base import FactsAdmin, LongTable, Verb, milliseconds
from scheduler.configuration.profiles import drafted, rollback_profile
from scheduler.configuration.publish import publish_run
from scheduler.models import ProfileVersion, SchedulerProfile, ShadowJob, ShadowRun
from scheduler.services.shadows.runs import LONGEST, MOST_EVERY, profile_of, start_run, stop_run
from scheduler.state.records.profile_versions import differences

#: Rows of a table on the page of a run.
SHOWN: Final = 100


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> SafeString:
    rows = [
        (name, json.dumps(old, ensure_ascii=False), json.dumps(new, ensure_ascii=False))
        for name, (old, new) in differences(before, after).items()
    ]
    return table(("Field", "Before", "After"), rows, "No field differs.")


def put_in_force(*, version: ProfileVersion, by: User, reason: str) -> SchedulerProfile:
    """The roll-back of the profile that this version is of."""
    profile = SchedulerProfile.objects.get(pk=version.profile_id)
    return rollback_profile(profile=profile, number=version.number, by=by, reason=reason)


@admin.register(ProfileVersion)
class ProfileVersionAdmin(LongTable):
    """Versions are read; one of them is put in force again by a verb."""

    list_display = ("profile_name", "number", "made_at", "made_by", "how", "reason")
    list_filter = ("profile_name", "origin")
    search_fields = ("profile_name", "made_by", "reason")
    ordering = ("-id",)
    fields = ("profile_name", "number", "made_at", "made_by", "how", "reason", "changes", "present", "whole")
    readonly_fields = ("how", "changes", "present", "whole")
    verbs = {
        "rollback": Verb(
            "Roll back to", "The profile is again as this version says, as a new version, from the next cycle on.",
            put_in_force, "version", "history",
        )
    }  # fmt: skip

    def has_operate_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return permissions.may(request.user, "administer")

    @display(description="Origin")
    def how(self, version: ProfileVersion) -> str:
        number = f" {version.origin_number}" if version.origin_number else ""
        return f"{version.get_origin_display()}{number}"

    @display(description="Changes from the version before")
    def changes(self, version: ProfileVersion) -> SafeString:
        before = (
            ProfileVersion.objects.filter(profile_id=version.profile_id, number__lt=version.number)
            .order_by("-number")
            .first()
        )
        return _differences(before.content if before else {}, version.content)

    @display(description="Changes since, until now")
    def present(self, version: ProfileVersion) -> SafeString | str:
        newest = ProfileVersion.objects.filter(profile_id=version.profile_id).order_by("-number").first()
        if newest is None or newest.number == version.number:
            return "This version is the newest."
        return _differences(version.content, newest.content)

    @display(description="Content")
    def whole(self, version: ProfileVersion) -> SafeString:
        return table(
            ("Field", "Value"),
            [(name, json.dumps(value, ensure_ascii=False)) for name, value in version.content.items()],
        )


class ShadowRunForm(forms.ModelForm):  # type: ignore[type-arg]
    draft = forms.JSONField(
        help_text='Fields of the profile that differ, such as {"policy": "sjf", "options": {"backfill_promises": 16}}.',
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 4}),
    )
    minutes = forms.IntegerField(
        min_value=1,
        max_value=int(LONGEST.total_seconds() // 60),
        initial=60,
        label="Duration (minutes)",
        widget=UnfoldAdminIntegerFieldWidget(),
    )
    reason = forms.CharField(max_length=200, validators=[one_line], widget=UnfoldAdminTextInputWidget())

    class Meta:
        model = ShadowRun
        fields = ("cluster", "queue", "every")
        help_texts = {
            "queue": "A queue with a profile of its own; empty: the profile of the cluster.",
            "every": f"One of this number of recorded cycles is planned, 1 to {MOST_EVERY}.",
        }

    def clean_draft(self) -> dict[str, Any]:
        draft = self.cleaned_data["draft"]
        if not isinstance(draft, dict):
            raise forms.ValidationError('Give an object such as {"policy": "sjf"}.')
        return draft


@admin.register(ShadowRun)
class ShadowRunAdmin(FactsAdmin):
    """A draft is started here, looked at, stopped and published; it starts no job."""

    form = ShadowRunForm
    list_display = (
        "id",
        "cluster",
        "queue",
        "profile",
        "state",
        "compared",
        "starts",
        "shadow_starts",
        "until",
    )
    list_select_related = ("cluster", "queue", "profile")
    list_filter = ("cluster", "state")
    search_fields = ("reason", "made_by")
    ordering = ("-id",)
    readonly_fields = ("changes", "planning", "jobs", "cycles_shown")
    verbs = {
        "stop": Verb("Stop", "No further cycle is compared; what was compared stays.", stop_run, "run", "stop"),
        "publish": Verb(
            "Publish", "The draft becomes a new version of the profile; planners follow from the next cycle on.",
            publish_run, "run", "publish",
        ),
    }  # fmt: skip

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return permissions.may(request.user, "operate")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            fields = ("cluster", "queue", "draft", "minutes", "every", "reason")
            text = (
                "Cycles that are recorded from now on are planned by the draft as well. No job starts by it."
            )
            return [(None, {"fields": fields, "description": text})]
        facts = ("cluster", "queue", "profile", "profile_version", "state", "cause", "every", "until", "made_at",
                 "made_by", "reason", "ended_at")  # fmt: skip
        return [
            (None, {"fields": facts}),
            ("Draft", {"fields": ("changes",)}),
            ("Comparison", {"fields": ("planning", "jobs", "cycles_shown")}),
        ]

    def save_model(self, request: HttpRequest, obj: ShadowRun, form: Any, change: bool) -> None:
        data, by = form.cleaned_data, request.user
        assert isinstance(by, User)
        made = start_run(
            cluster=data["cluster"], queue=data["queue"],
            content=drafted(profile_of(data["cluster"], data["queue"]), data["draft"]),
            until=timezone.now() + timedelta(minutes=data["minutes"]), every=data["every"], by=by,
            reason=data["reason"],
        )  # fmt: skip
        obj.__dict__.update(made.__dict__)

    @display(description="Changes from the profile")
    def changes(self, run: ShadowRun) -> SafeString:
        base = ProfileVersion.objects.filter(profile_id=run.profile_id, number=run.profile_version).first()
        return _differences(base.content if base else {}, run.content)

    @display(description="Sums")
    def planning(self, run: ShadowRun) -> SafeString:
        cycles = max(run.compared, 1)
        rows = [
            ("Starts", run.starts, run.shadow_starts),
            (
                "Planning time of a cycle",
                milliseconds(run.plan_us // cycles),
                milliseconds(run.shadow_us // cycles),
            ),
        ]
        return format_html(
            "<p>{} cycles compared, {} skipped.</p>{}",
            run.compared,
            run.skipped,
            table(("", "Profile in force", "Draft"), rows),
        )

    @display(description="Jobs that would have started at another time")
    def jobs(self, run: ShadowRun) -> SafeString:
        listed = ShadowJob.objects.filter(run=run)
        longest_first = (F("started_at") - F("shadow_at")).desc(nulls_last=True)
        rows = [
            (
                format_html(
                    '<a class="text-primary-600 underline" href="{}">{}</a>',
                    reverse("admin:scheduler_job_change", args=[row.job]),
                    row.job,
                ),
                _time(row.started_at),
                _time(row.shadow_at) if row.shadow_at else "not by then",
                _earlier(row),
            )
            for row in listed.order_by(longest_first, "job")[:SHOWN]
        ]
        return format_html(
            "<p>{} earlier by the draft, {} later{}.</p>{}",
            listed.filter(shadow_at__isnull=False).count(),
            listed.filter(shadow_at=None).count(),
            f"; {run.jobs_left_out} more are not listed" if run.jobs_left_out else "",
            table(("Job", "Started", "By the draft", "Earlier by"), rows, "No job differs so far."),
        )

    @display(description="Newest cycles")
    def cycles_shown(self, run: ShadowRun) -> SafeString:
        rows = [
            (
                row.cycle, _time(row.at), f"{row.starts} / {row.shadow_starts}", row.only_real, row.only_shadow,
                row.elsewhere, f"{row.waiting} / {row.shadow_waiting}", f"{row.stops} / {row.shadow_stops}",
                f"{milliseconds(row.plan_us)} / {milliseconds(row.shadow_us)}",
            )
            for row in run.cycles.order_by("-cycle")[:SHOWN]
        ]  # fmt: skip
        heads = ("Cycle", "At", "Starts / draft", "Only in force", "Only draft", "Other nodes", "Waiting / draft",
                 "Stops / draft", "Planning / draft")  # fmt: skip
        return table(heads, rows, "No cycle has been recorded and compared yet.")


def _time(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}" if moment else "not yet"


def _earlier(row: ShadowJob) -> str:
    if row.started_at is None or row.shadow_at is None:
        return "–"
    return f"{int((row.started_at - row.shadow_at).total_seconds())} s"
