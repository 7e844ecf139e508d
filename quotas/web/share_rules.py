"""The page on which operators change how past use counts: with a preview, a reason and an audit row."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from accounts import permissions
from accounts.models import User
from accounts.web.pages import page, reader
from infra.errors import Conflict, InvalidInput
from infra.plain_text import reason_of
from quotas.core.decay import MODES, Decay
from quotas.core.fairshare import Metering
from quotas.models import FairShareRules
from quotas.selectors.fair_share_source import settings_rules, share_rules
from quotas.selectors.share_preview import RulesPreview, preview_rules
from quotas.services.share_rules import reset_share_rules, rules_version, rules_with, set_share_rules

#: A field of the form: the rule, how many seconds one of its units has (0 = a plain number), and its words.
_FIELDS: Final = (
    ("half_life", "half_life_seconds", 3600, "Half-life, hours",
     "After this time, use counts half. From 1 minute (0.02) to 10,000 hours. Acts with the decay “half-life”."),
    ("window", "window_seconds", 86_400, "Window, days",
     "Use before the window does not count. Up to 366 days; the window moves in steps of six hours."),
    ("gpu", "gpu_weight", 0, "Weight of a GPU-hour", "What an hour of one GPU counts; 0: GPUs do not count."),
    ("cpu", "cpu_weight", 0, "Weight of a core-hour", "What an hour of one CPU core counts; 0: CPUs do not count."),
    ("memory", "memory_weight", 0, "Weight of a GiB-hour",
     "What an hour of one GiB of memory counts; 0: memory does not count."),
)  # fmt: skip


@require_http_methods(["GET", "HEAD", "POST"])
@page
def rules(request: HttpRequest) -> HttpResponse:
    """Nothing is saved by "preview"; "save" and "reset" need a reason and the version that was seen."""
    user = reader(request)
    permissions.require(user, "operate")
    texts, problems, trouble = _texts(*share_rules()), dict[str, str](), ""
    preview: RulesPreview | None = None
    reason = ""
    if request.method == "POST":
        texts = {name: request.POST.get(name, "").strip()[:40] for name in texts}
        reason = reason_of(request.POST.get("reason", ""), most=1000)
        verb = request.POST.get("do", "preview")
        try:
            if verb == "preview":
                preview = preview_rules(*rules_with(_changes(texts)))
            else:
                _save(user, verb, texts, reason, request.POST.get("seen", ""))
                messages.success(request, "The rules of fair share are changed, from the next cycle on.")
                return redirect("share-rules")
        except InvalidInput as error:
            problems = {_name_of(problem.field): problem.message for problem in error.problems}
            trouble = error.message
        except Conflict as error:
            trouble = f"{error} Look at the current values, then make your change again."
    newest = FairShareRules.objects.select_related("changed_by").order_by("-pk").first()
    context = {
        "fields": [
            (name, label, texts[name], hint, problems.get(name, "")) for name, _, _, label, hint in _FIELDS
        ],
        "mode": texts["mode"],
        "modes": MODES,
        "dominant": texts["dominant"] == "on",
        "problems": problems,
        "trouble": trouble,
        "reason": reason,
        "preview": preview,
        "newest": newest,
        "in_rows": newest is not None and not newest.from_settings,
        "seen": rules_version(),
        "of_settings": _texts(*settings_rules()),
    }
    return render(request, "quotas/share_rules.html", context, status=422 if trouble else 200)


def _save(user: User, verb: str, texts: dict[str, str], reason: str, seen: str) -> None:
    version = int(seen) if seen.isascii() and seen.isdecimal() and len(seen) < 16 else -1
    if verb == "reset":
        reset_share_rules(by=user, reason=reason, seen_version=version)
    else:
        set_share_rules(changes=_changes(texts), by=user, reason=reason, seen_version=version)


def _texts(decay: Decay, metering: Metering) -> dict[str, str]:
    """The rules as the form's fields have them."""
    values = {
        "half_life_seconds": decay.half_life_seconds, "window_seconds": decay.window_seconds,
        "gpu_weight": metering.gpu, "cpu_weight": metering.cpu, "memory_weight": metering.memory,
    }  # fmt: skip
    texts = {name: f"{values[rule] / (unit or 1):g}" for name, rule, unit, _, _ in _FIELDS}
    return texts | {"mode": decay.mode, "dominant": "on" if metering.dominant else ""}


def _changes(texts: dict[str, str]) -> dict[str, Any]:
    """The rules from the fields' texts; what is no number is refused by the service, in words."""
    changes: dict[str, Any] = {"mode": texts["mode"], "dominant": texts["dominant"] == "on"}
    for name, rule, unit, _, _ in _FIELDS:
        try:
            number = float(texts[name])
            changes[rule] = round(number * unit) if unit else number
        except (ValueError, OverflowError):
            changes[rule] = -1
    return changes


def _name_of(rule: str) -> str:
    return next((name for name, one, _, _, _ in _FIELDS if one == rule), rule)
