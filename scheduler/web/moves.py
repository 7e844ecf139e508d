"""Drains, moves and rebalancing on pages: the plan of a drain, its outcome for one job, and proposed moves."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from accounts import permissions
from accounts.models import User
from accounts.web.pages import page, reader
from infra.errors import InvalidInput, NotFound
from infra.plain_text import reason_of
from infra.times_in_text import written
from scheduler.core.lifecycle import RestartPolicy
from scheduler.models import Allocation, Cluster, Job, JobMove, MoveState, Node
from scheduler.selectors import node_by_ref
from scheduler.services.moves.drains import drain_of
from scheduler.services.moves.fates import RUNS, Fate, words_of_many, words_without_plan
from scheduler.services.moves.rebalance import Applied, Proposal, apply_moves, propose_moves

#: Deadlines that the dialog offers; any other may be given to the API and the command line.
DEADLINES: Final = (
    ("", "none: running jobs continue to their end"), ("15m", "15 minutes"), ("1h", "1 hour"), ("4h", "4 hours"),
    ("12h", "12 hours"), ("1d", "1 day"), ("3d", "3 days"), ("7d", "7 days"),
)  # fmt: skip
#: Nodes that a job may be sent to by the dialog.
MOST_TARGETS: Final = 200


class JobDrain(NamedTuple):
    """A drain as the page of a job says it."""

    node: str
    reason: str
    by: str
    deadline: datetime | None
    words: str


@require_safe
@page
def drain_plan(request: HttpRequest, node_id: int) -> HttpResponse:
    """What a drain of this node would mean for each job that runs there; for operators. Changes nothing."""
    user = reader(request)
    node = node_by_ref(user, node_id)
    asked = request.GET.get("deadline", "")
    trouble = ""
    try:
        plan = drain_of(node, by=user, payload={"deadline": asked} if asked else None)
    except InvalidInput as error:
        trouble = error.problems[0].message if error.problems else error.message
        plan = drain_of(node, by=user)
    context = {
        "node": node,
        "plan": plan,
        "counts": [(words_of_many(fate, count), count) for fate in Fate if (count := plan.counts[fate])],
        "asked": asked,
        "trouble": trouble,
        "deadlines": DEADLINES,
    }
    return render(request, "scheduler/drain_plan.html", context)


def drains_of(job: Job) -> list[JobDrain]:
    """The drains of the nodes that a job runs on, and what they mean for it."""
    if not job.is_active:
        return []
    held = Allocation.objects.held().filter(attempt__job=job, attempt__is_live=True, node__draining=True)
    found: dict[int, JobDrain] = {}
    for one in held.select_related("node", "attempt__job__queue").order_by("node__name"):
        node = one.node
        words = words_without_plan(one.attempt, node.drain_deadline_at)
        found[node.pk] = JobDrain(
            node.name, node.drain_reason, node.drained_by_words, node.drain_deadline_at, words
        )
    return list(found.values())


def move_of(job: Job) -> JobMove | None:
    """The move of a job that is under way, or that was undone in the attempt that runs."""
    move = JobMove.objects.filter(job=job).select_related("target", "asked_by").first()
    if move is None or (move.ended_at is not None and move.epoch != job.epoch):
        return None
    return move if move.state != MoveState.DONE else None


def may_move(job: Job) -> bool:
    """Whether its own row lets it be moved; whether a place is free is looked at when somebody asks."""
    return bool(job.checkpoint) and job.state in RUNS and job.restart_policy != RestartPolicy.NEVER


def targets_of(job: Job) -> Iterable[str]:
    """Names of the nodes that a job may be sent to: they take jobs, and it does not run there."""
    held = Allocation.objects.held().filter(attempt__job=job).values("node")
    nodes = Node.objects.schedulable().filter(cluster=job.queue.cluster_id).exclude(pk__in=held)
    return nodes.order_by("name").values_list("name", flat=True)[:MOST_TARGETS]


def said_of_drain(node: Node) -> str:
    """What is said once a node drains."""
    if node.drain_deadline_at is None:
        return f"{node.name} is draining and accepts no new jobs."
    return (
        f"{node.name} is draining: jobs are moved or end until {written(node.drain_deadline_at)}, "
        "and what still runs then is requeued."
    )


def moves_shown(job: Job, verbs: frozenset[str]) -> dict[str, Any]:
    """What the page of a job shows of drains and moves."""
    return {
        "drains": drains_of(job),
        "move": move_of(job) if job.checkpoint else None,
        "targets": list(targets_of(job)) if "migrate" in verbs else [],
    }


# ---------------------------------------------------------------- rebalancing


@require_http_methods(["GET", "HEAD", "POST"])
@page
def rebalance(request: HttpRequest) -> HttpResponse:
    """The proposals of a cluster; POST starts the chosen ones. Raises NotAllowed and NotFound."""
    user = reader(request)
    permissions.require(user, "operate")
    cluster = _cluster(request.GET.get("cluster", ""))
    if request.method == "POST":
        _apply(request, user)
        return redirect(f"{reverse('rebalance')}?cluster={cluster.slug}")
    found = propose_moves(cluster=cluster, by=user)
    context = {
        "cluster": cluster,
        "clusters": Cluster.objects.order_by("name"),
        "proposals": [(one, _percents(one)) for one in found],
        "measured": any(one.fragmented_before != one.fragmented_after for one in found),
    }
    return render(request, "scheduler/rebalance.html", context)


def _percents(one: Proposal) -> str:
    """The fragmented part of the GPUs before and after a move; "" where no pending job asks for GPUs."""
    if one.fragmented_before is None or one.fragmented_after is None:
        return ""
    return f"{100 * one.fragmented_before:.0f} % → {100 * one.fragmented_after:.0f} %"


def _cluster(slug: str) -> Cluster:
    clusters = Cluster.objects.order_by("id")
    cluster = (clusters.filter(slug=slug) if slug else clusters).first()
    if cluster is None:
        raise NotFound(f"There is no cluster {slug[:60]!r}.", way_out="The page Cluster lists the nodes.")
    return cluster


def _apply(request: HttpRequest, user: User) -> None:
    chosen = [one.partition(":") for one in request.POST.getlist("move")]
    if not chosen:
        messages.error(request, "Select at least one move first.")
        return
    reason = reason_of(request.POST.get("reason", ""), most=200)
    moves = [{"job": job, "node": node} for job, _, node in chosen]
    for done in apply_moves(payload={"moves": moves, "reason": reason}, by=user):
        _say(request, done)


def _say(request: HttpRequest, done: Applied) -> None:
    if done.refused:
        messages.error(request, f"Job {done.job} is not moved: {done.refused}")
    else:
        messages.success(request, f"Job {done.job} is being moved to {done.node}.")
