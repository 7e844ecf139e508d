"""`manage.py rebalance`: moves of running jobs after which waiting jobs start, and applying those that are chosen."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from infra import request_context
from infra.errors import MusterError
from scheduler.management.commands.drain_node import operator_of
from scheduler.models import Cluster
from scheduler.services.moves.rebalance import Proposal, apply_moves, propose_moves


class Command(BaseCommand):
    help = "Proposes single moves of running jobs after which waiting jobs start, with costs; --apply begins some."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--cluster", default="", help="slug of the cluster (default: the first one)")
        parser.add_argument(
            "--apply",
            type=int,
            nargs="+",
            default=[],
            metavar="JOB",
            help="begin the proposed moves of these jobs",
        )
        parser.add_argument(
            "--by", default="", help="the operator who does it (default: the first administrator)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        slug, by = options["cluster"], operator_of(options["by"])
        cluster = Cluster.objects.filter(**({"slug": slug} if slug else {})).order_by("id").first()
        if cluster is None:
            raise CommandError(f"There is no cluster {slug!r}.")
        try:
            with request_context.acting(address="local"):
                found = propose_moves(cluster=cluster, by=by)
                self.stdout.write("".join(map(_line, found)) or "No single move lets a waiting job start.")
                chosen = [one for one in found if one.job.number in options["apply"]]
                if missing := sorted(set(options["apply"]) - {one.job.number for one in chosen}):
                    raise CommandError(f"No move is proposed of {', '.join(map(str, missing))}.")
                moves = [{"job": one.job.number, "node": one.target.name} for one in chosen]
                done = apply_moves(payload={"moves": moves}, by=by) if moves else []
        except MusterError as error:
            raise CommandError(str(error)) from error
        for one in done:
            what = f"is not moved: {one.refused}" if one.refused else f"is moved to {one.node}."
            self.stdout.write(f"Job {one.job} {what}")


def _line(one: Proposal) -> str:
    starts = ", ".join(str(job.number) for job in one.starts)
    back = f", regained after {one.payback_seconds:,.0f} s" if one.payback_seconds is not None else ""
    return (
        f"Job {one.job.number}: {one.leaves} to {one.target.name}; costs it {one.cost.seconds:,.1f} s"
        f" ({one.cost.gpu_seconds:,.1f} GPU-seconds{back}); starts {starts} with {one.started_gpus:g} GPUs.\n"
    )
