"""The tree of shares: who is entitled to what, who used what, and what that means for whose turn it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from accounts import permissions
from accounts.models import Membership, Organization, Project, User
from accounts.models.project import SHARE_RANGE
from accounts.web.pages import page, reader
from infra.errors import Conflict, InvalidInput
from infra.plain_text import reason_of
from quotas.core.decay import MODES, Decay
from quotas.selectors.fair_share_report import ShareLine, limit_words, standing
from quotas.selectors.fair_share_source import share_rules
from quotas.selectors.usage_decay import fading
from quotas.services.shares import EDITABLE, Subject, set_share, share_subject
from quotas.templatetags.share_charts import boxes_of

#: The dumbbells are drawn on 400 by 14, with room for half a dot at either end.
_EDGE: Final = 6.0
_WIDTH: Final = 388.0


@dataclass(frozen=True, slots=True)
class Drawn:
    """A line with where its two dots stand in the drawing, and whom the reader would know it by."""

    line: ShareLine
    share_at: float
    used_at: float
    project: str = ""

    @property
    def left(self) -> float:
        return min(self.share_at, self.used_at)

    @property
    def right(self) -> float:
        return max(self.share_at, self.used_at)

    @property
    def tone(self) -> str:
        if self.line.over == "hard" or (self.line.times or 0) >= 2:
            return "failed"
        return "pending" if (self.line.times or 0) >= 1.05 else "completed"


class PreviewForm(forms.Form):
    """Another decay, to look at: nothing is saved."""

    mode = forms.ChoiceField(choices=[(mode, mode) for mode in MODES], required=False)
    half_life = forms.FloatField(min_value=0.1, max_value=10_000, required=False)
    window = forms.FloatField(min_value=0.1, max_value=366, required=False)

    def decay(self) -> Decay | None:
        """None when nothing was asked for or it makes no sense."""
        if not self.is_valid() or not any(self.cleaned_data.values()):
            return None
        rules, _ = share_rules()
        data = self.cleaned_data
        return Decay(
            mode=data["mode"] or rules.mode,
            half_life_seconds=int((data["half_life"] or rules.half_life_seconds / 3600) * 3600),
            window_seconds=int((data["window"] or rules.window_seconds / 86_400) * 86_400),
        )


@require_safe
@page
def index(request: HttpRequest) -> HttpResponse:
    user = reader(request)
    form = PreviewForm(request.GET)
    found = standing(user, decay=form.decay())
    longest = max((max(line.share, line.ratio) for line in found.lines), default=0) or 1
    drawn = [
        Drawn(line, _EDGE + _WIDTH * line.share / longest, _EDGE + _WIDTH * line.ratio / longest)
        for line in found.lines
    ]
    context = {
        "standing": found,
        "rows": drawn,
        "mine": _mine(drawn),
        "boxes": boxes_of(found.lines, [row.tone for row in drawn]),
        "fading": fading(user, at=found.at.timestamp(), decay=found.decay) if found.lines else (),
        "form": form,
        "is_operator": permissions.may(user, "operate"),
        "modes": MODES,
        "half_life": f"{found.decay.half_life_seconds / 3600:g}",
        "window": f"{found.decay.window_seconds / 86_400:g}",
    }
    return render(request, "quotas/shares.html", context)


def _mine(drawn: list[Drawn]) -> list[Drawn]:
    """The reader's own lines: their projects, and themselves in each."""
    found, project = [], ""
    for row in drawn:
        if row.line.kind == "project":
            project = row.line.name
        if row.line.mine and row.line.kind != "organization":
            found.append(replace(row, project=project))
    return found


@require_http_methods(["GET", "HEAD", "POST"])
@page
def edit(request: HttpRequest, kind: str, number: int) -> HttpResponse:
    """A form of its own: the values seen go along, so that two edits cannot cross."""
    user = reader(request)
    subject = share_subject(user, kind, number)
    names = EDITABLE[type(subject)]
    now = {name: getattr(subject, name) for name in names}
    values: dict[str, Any] = {name: "" if value is None else value for name, value in now.items()}
    problems: dict[str, str] = {}
    trouble = ""
    reason = ""
    if request.method == "POST":
        values = {name: request.POST.get(name, "").strip() for name in names}
        seen = {name: request.POST.get(f"seen_{name}", "") for name in names}
        reason = reason_of(request.POST.get("reason", ""), most=1000)
        try:
            set_share(
                subject=subject,
                changes={name: _number(name, value) for name, value in values.items()},
                by=user,
                reason=reason,
                seen={name: _number(name, value) for name, value in seen.items()},
            )
        except InvalidInput as error:
            problems = {problem.field: problem.message for problem in error.problems}
            trouble = error.message
        except Conflict as error:
            trouble = f"{error} Current values: {_in_words(now)}."
        else:
            messages.success(request, f"Share of {_name(subject)} changed.")
            return redirect("shares")
    context = {
        "subject": subject,
        "name": _name(subject),
        "kind": kind,
        "fields": [
            (
                name,
                _LABELS[name],
                values[name],
                "" if now[name] is None else now[name],
                problems.get(name, ""),
            )
            for name in names
        ],
        "trouble": trouble,
        "reason": reason,
        "reason_problem": problems.get("reason", ""),
        "least": SHARE_RANGE[0],
        "most": SHARE_RANGE[1],
        "is_operator": permissions.may(user, "operate"),
        "limit_words": _limit_words(subject),
    }
    return render(request, "quotas/share_edit.html", context, status=422 if trouble else 200)


def _limit_words(subject: Subject) -> str:
    """From which use the limits of a share bind; people have none."""
    return limit_words(subject) if isinstance(subject, Organization | Project) else ""


_LABELS: Final = {
    "share_weight": "Weight",
    "share_soft_percent": "Soft limit, percent of the site",
    "share_hard_percent": "Hard limit, percent of the site",
}


def _number(name: str, text: str) -> int | None:
    if text == "" and name != "share_weight":
        return None
    try:
        return int(text)
    except ValueError:
        return -1  # refused by the service, in words


def _in_words(now: dict[str, int | None]) -> str:
    return ", ".join(
        f"{_LABELS[name].lower()} {'–' if value is None else value}" for name, value in now.items()
    )


def _name(subject: Subject) -> str:
    if isinstance(subject, User):
        return subject.username
    if isinstance(subject, Membership):
        return f"{subject.user.username} in {subject.project.name}"
    return subject.name
