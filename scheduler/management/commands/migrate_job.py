"""`manage.py migrate_job`: move a running job to other nodes by a checkpoint, from the command line."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from infra import request_context
from infra.errors import MusterError
from scheduler.management.commands.drain_node import operator_of
from scheduler.models import Job, JobMove, MoveState
from scheduler.selectors import node_by_ref
from scheduler.services.moves.verbs import migrate_job


class Command(BaseCommand):
    help = "Moves a running job: the job writes a checkpoint, ends, and continues from it on another node."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("job", type=int, help="number of the job")
        parser.add_argument(
            "--to", default="", metavar="NODE", help="where it goes on (default: the planner chooses)"
        )
        parser.add_argument("--reason", default="", help="reason; shown to its owner")
        parser.add_argument("--by", default="", help="who does it (default: the first administrator)")
        parser.add_argument("--wait", action="store_true", help="return when it runs again, or was not moved")

    def handle(self, *args: Any, **options: Any) -> None:
        job = Job.objects.filter(number=options["job"]).first()
        if job is None:
            raise CommandError(f"There is no job {options['job']}.")
        by = operator_of(options["by"])
        try:
            with request_context.acting(address="local"):
                target = node_by_ref(by, options["to"]) if options["to"] else None
                migrate_job(job=job, by=by, target=target, reason=options["reason"][:200])
        except MusterError as error:
            raise CommandError(str(error)) from error
        move = JobMove.objects.filter(job=job).first()
        if move is None:
            raise CommandError(f"Job {job.said_number} has changed since then and is not moved.")
        self.stdout.write(f"Job {job.said_number} {move.get_state_display()}.")
        while options["wait"] and move.ended_at is None:
            time.sleep(1.0)
            move.refresh_from_db()
        if options["wait"]:
            self.stdout.write(f"{move.text[:1].upper()}{move.text[1:]}.")
            if move.state == MoveState.UNDONE:
                raise CommandError(f"Job {job.said_number} was not moved.")
