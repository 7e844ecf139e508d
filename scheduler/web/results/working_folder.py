"""What a job has left in its working folder: shown on its page, downloaded file by file or whole, removed."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.db.models import Count, Sum
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from accounts import permissions
from accounts.models import User
from accounts.web.pages import page, reader
from infra.archives import KINDS
from infra.errors import InvalidInput, MusterError
from infra.plain_text import reason_of
from scheduler.models import Artifact, Job, KeptResult, LeaveReason
from scheduler.selectors import job_by_ref
from scheduler.services.results.downloads import download_archive, download_file
from scheduler.services.results.kept import policy_of
from scheduler.services.results.reading import FileEntry, Folder, folder_of, folders_of, list_entries
from scheduler.services.results.removal import remove_results

#: Entries on the page; the list goes on in the API, and a download has all of them.
MOST_SHOWN: Final = 200
#: Folders that the page links to; of a job with more, attempt and task are typed in.
MOST_FOLDERS: Final = 40
#: Folders that have left and are still named.
MOST_LEFT: Final = 20


def results_of(job: Job, user: User, request: HttpRequest) -> dict[str, Any]:
    """What the tab shows; the list of files is asked of the node now."""
    if not permissions.may(user, "read_results", job):
        return {"results_hidden": True} | _sizes_for_removal(job, user)
    folders = folders_of(job, by=user)
    chosen = _chosen(folders, request)
    context: dict[str, Any] = {
        "folders": folders,
        "linked": folders[:MOST_FOLDERS],
        "chosen": chosen,
        "no_such_folder": _is_asked(request) and (chosen is None or not _is_that(chosen, request)),
        "policy": policy_of(job.queue),
        "left": KeptResult.objects.filter(job=job, left_at__isnull=False).select_related("node")[:MOST_LEFT],
        "may_remove": any(one.kept for one in folders) and permissions.may(user, "remove_results", job),
        "removable": [one.kept for one in folders if one.kept],
    }
    if chosen is not None:
        try:
            entries, context["more_files"] = list_entries(chosen, most=MOST_SHOWN)
            context["files"], context["listed"] = with_content(entries), len(entries)
        except MusterError as error:
            context["files_trouble"] = str(error)
    return context


def _sizes_for_removal(job: Job, user: User) -> dict[str, Any]:
    """For a person who may remove the files and not read them, as operators may: how much is kept, and no name."""
    if not permissions.may(user, "remove_results", job):
        return {}
    kept = KeptResult.objects.filter(job=job, left_at=None).exclude(leaves_because=LeaveReason.ASKED)
    stored = Artifact.objects.present(timezone.now()).filter(job=job)
    return {
        "kept_sums": kept.aggregate(folders=Count("pk"), files=Sum("files"), size=Sum("size_bytes")),
        "kept_nodes": sorted(set(kept.values_list("node__name", flat=True))),
        "stored_sums": stored.aggregate(files=Count("pk"), size=Sum("size_bytes")),
        "may_remove": kept.exists(),
        "may_remove_artifacts": stored.exists(),
    }


def with_content(entries: list[FileEntry]) -> list[FileEntry]:
    """All but folders of which a listed entry is inside: its path names them."""
    inside = {entry.path.rpartition("/")[0] for entry in entries}
    return [entry for entry in entries if entry.kind != "folder" or entry.path not in inside]


def _chosen(folders: list[Folder], request: HttpRequest) -> Folder | None:
    """The folder that the address names, else the first."""
    first = folders[0] if folders else None
    return next((one for one in folders if _is_that(one, request)), first)


def _is_asked(request: HttpRequest) -> bool:
    return bool(request.GET.get("attempt") or request.GET.get("rank"))


def _is_that(folder: Folder, request: HttpRequest) -> bool:
    return (request.GET.get("attempt"), request.GET.get("rank")) == (str(folder.epoch), str(folder.rank))


def _folder(request: HttpRequest, number: int) -> Folder:
    user = reader(request)
    epoch, rank = (_number(request.GET.get(name, "")) for name in ("attempt", "rank"))
    return folder_of(job_by_ref(user, number), by=user, epoch=epoch, rank=rank)


def _number(text: str) -> int | None:
    """None for nothing; -1, which no folder has, for what is no number."""
    if not text:
        return None
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1


@require_safe
@page
def file(request: HttpRequest, number: int) -> HttpResponseBase:
    """One file."""
    return download_file(request, _folder(request, number), request.GET.get("path", ""))


def wanted_kind(request: HttpRequest) -> str:
    """The kind of archive that a link asks for; raises InvalidInput."""
    kind = request.GET.get("kind") or KINDS[0]
    if kind not in KINDS:
        raise InvalidInput(f"Archives are {' or '.join(KINDS)}.", way_out="Use the buttons of the page.")
    return kind


@require_safe
@page
def archive(request: HttpRequest, number: int) -> HttpResponseBase:
    """The whole folder."""
    return download_archive(request, _folder(request, number), wanted_kind(request))


@require_POST
@page
def remove(request: HttpRequest, number: int) -> HttpResponse:
    """Remove all that is kept of the job."""
    user = reader(request)
    reason = reason_of(request.POST.get("reason", ""), most=200)
    job = job_by_ref(user, number)
    removed = remove_results(job=job, by=user, reason=reason)
    said = (
        f"The results of job {job.said_number} are being removed."
        if removed
        else "Nothing was left to remove."
    )
    messages.success(request, said)
    return redirect(f"{reverse('job', args=[number])}?tab=results")
