"""Admin pages of quotas outside Muster: how things stand, look again, put right with a reason; refusals of starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import path, reverse
from unfold.decorators import display

from accounts.admin.base import FactsAdmin, ReasonedForm, table
from accounts.services import audit
from infra.errors import MusterError
from quotas.models import ProviderAllocation, ProviderState, ProviderStatus, RefusedStart
from quotas.providers.view import ProviderView, view_of
from quotas.services.providers import exchange_quota, repair_provider


@dataclass(frozen=True, slots=True)
class Verb:
    title: str
    effect: str
    icon: str
    do: Callable[..., Any]


VERBS: Final = {
    "look": Verb(
        "Check now",
        "Asks the provider now, sends pending changes, and shows what differs. Overwrites nothing.",
        "sync",
        lambda *, project, by, reason: exchange_quota(project=project, by=by),
    ),
    "repair": Verb(
        "Repair",
        "Overwrites the provider's limits with those of Muster.",
        "build",
        repair_provider,
    ),
}


class WhyForm(ReasonedForm):
    class Meta:
        model = ProviderState
        fields = ()


@admin.register(ProviderState)
class ProviderStateAdmin(FactsAdmin):
    """Nobody edits these rows: limits are edited on the quota, or where they are kept."""

    list_display = ("project", "provider", "status_shown", "since", "synced_at", "text")
    list_filter = ("status", "provider")
    list_select_related = ("project",)
    search_fields = ("project__name", "project__slug", "text")
    ordering = ("status", "project__name")
    change_form_outer_before_template = "admin/muster_verbs.html"
    fieldsets = (
        (None, {"fields": ("project", "provider", "status_shown", "since", "text")}),
        ("Limits", {"fields": ("limits", "in_use", "not_kept", "facts_shown")}),
        ("Exchanges", {"fields": (("synced_at", "written_at"), ("failures", "next_try_at"))}),
    )
    readonly_fields = ("status_shown", "limits", "in_use", "not_kept", "facts_shown")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ProviderState]:
        return super().get_queryset(request).select_related("project")

    @display(
        description="Status",
        ordering="status",
        label={
            ProviderStatus.OK.label: "success", ProviderStatus.PENDING.label: "info",
            ProviderStatus.DRIFT.label: "warning", ProviderStatus.OFF.label: "info",
            ProviderStatus.UNREACHABLE.label: "danger", ProviderStatus.REFUSED.label: "danger",
        },
    )  # fmt: skip
    def status_shown(self, state: ProviderState) -> str:
        return str(state.get_status_display())

    @display(description="Differences")
    def limits(self, state: ProviderState) -> Any:
        view = _view(state)
        rows = [(d.key, d.here, d.there) for d in view.differences]
        return table(("Limit", "Here", "There"), rows) if rows else "None at the last check."

    @display(description="In use at the provider")
    def in_use(self, state: ProviderState) -> Any:
        used = _view(state).used
        return table(("Resource", "In use"), list(used.items())) if used else "–"

    @display(description="Enforced by Muster only")
    def not_kept(self, state: ProviderState) -> str:
        return ", ".join(state.left_out) or "–"

    @display(description="Fair share at the provider")
    def facts_shown(self, state: ProviderState) -> Any:
        share = state.facts.get("fair_share", {})
        rows = [
            (name, share[name])
            for name in ("norm_shares", "raw_usage_seconds", "fair_share")
            if name in share
        ]
        return table(("Figure", "Value"), rows) if rows else "–"

    # ------------------------------------------------------------ look again, put right

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.do_verb)
        own = path("<int:object_id>/do/<slug:name>/", view, name="quotas_providerstate_do")
        return [own, *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        extra = dict(extra_context or {})
        # Only what could be a row's number makes an address; the rest gets the answer below that there is no such row.
        if self._may_do(request) and object_id.isascii() and object_id.isdecimal():
            extra["muster_verbs"] = [
                (verb, reverse("admin:quotas_providerstate_do", args=[object_id, name]))
                for name, verb in VERBS.items()
            ]
        return super().change_view(request, object_id, form_url, extra)

    def do_verb(self, request: HttpRequest, object_id: int, name: str) -> HttpResponse:
        """Ask why, then do it, outside any transaction: the provider is asked over a network."""
        verb = VERBS.get(name)
        if verb is None or not self._may_do(request):
            raise PermissionDenied
        state = get_object_or_404(self.get_queryset(request), pk=object_id)
        form = WhyForm(request.POST if request.method == "POST" else None)
        form.fields["reason"].required = name == "repair"
        if request.method == "POST" and form.is_valid():
            self._do(request, verb, state, form.cleaned_data["reason"])
            return HttpResponseRedirect(reverse("admin:quotas_providerstate_change", args=[object_id]))
        context = {
            **self.admin_site.each_context(request), "opts": self.opts, "verb": verb, "rows": [state],
            "title": f"{verb.title}: {state.project}", "form": form,
        }  # fmt: skip
        return render(request, "admin/muster_verb.html", context)

    def _do(self, request: HttpRequest, verb: Verb, state: ProviderState, reason: str) -> None:
        try:
            verb.do(project=state.project, by=request.user, reason=reason)
        except MusterError as error:
            audit.record_refusal(error, by=request.user)
            messages.error(request, str(error))
            return
        now = ProviderState.objects.filter(pk=state.pk).first()
        messages.success(request, _view(now).sentence if now else "Muster manages this quota itself now.")

    def _may_do(self, request: HttpRequest) -> bool:
        from accounts import permissions

        return bool(permissions.may(request.user, "operate"))


@admin.register(RefusedStart)
class RefusedStartAdmin(FactsAdmin):
    """Jobs that wait because their provider refused them, and those that did in the last day."""

    list_display = ("job_number", "project", "provider", "text", "times", "refused_at", "until")
    list_filter = ("provider", "possible")
    list_select_related = ("project",)
    search_fields = ("project__name", "project__slug", "text")


@admin.register(ProviderAllocation)
class ProviderAllocationAdmin(FactsAdmin):
    """What providers that decide about starts count for attempts, and which calls are still to be made."""

    list_display = (
        "attempt_id", "job_number", "project", "provider", "state", "text", "asked_at", "released_at",
        "tries", "next_try_at",
    )  # fmt: skip
    list_filter = ("state", "provider")
    list_select_related = ("project",)
    search_fields = ("project__name", "project__slug", "text")


def _view(state: ProviderState) -> ProviderView:
    return view_of(state)
