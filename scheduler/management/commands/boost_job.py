"""`manage.py boost_job`: add to a job's effective priority for a time, from the command line."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from accounts.models import User
from infra import request_context
from infra.errors import MusterError
from scheduler.models import Job
from scheduler.services.jobs.boosts import boost_job

#: The service says what is too long for a boost; this is only what it can be asked.
MOST_HOURS: Final = 366 * 24


class Command(BaseCommand):
    help = "Adds to a job's effective priority for a time; 0 points end its boost."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("job", type=int, help="number of the job")
        parser.add_argument("points", type=int, help="what is added to its priority")
        parser.add_argument("--hours", type=float, default=24.0, help="for so long (default: 24)")
        parser.add_argument(
            "--reason", required=True, help="reason; shown to the owners of jobs that are passed"
        )
        parser.add_argument(
            "--by", default="", help="the operator who does it (default: the first administrator)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        job = Job.objects.filter(number=options["job"]).first()
        if job is None:
            raise CommandError(f"There is no job {options['job']}.")
        if not 0 < options["hours"] <= MOST_HOURS:
            raise CommandError(f"--hours has to be above 0 and at most {MOST_HOURS:,}.")
        by = self._operator(options["by"])
        try:
            with request_context.acting(address="local"):
                boost_job(
                    job=job, by=by, points=options["points"], reason=options["reason"],
                    seconds=round(options["hours"] * 3600),
                )  # fmt: skip
        except MusterError as error:
            raise CommandError(str(error)) from error
        if job.boost_until_at is None:
            self.stdout.write(f"Job {job.said_number} has its base priority of {job.priority} again.")
        else:
            self.stdout.write(
                f"Job {job.said_number} counts as priority {job.priority + job.boost}"
                f" until {job.boost_until_at:%Y-%m-%d %H:%M} UTC."
            )

    def _operator(self, name: str) -> User:
        people = User.objects.order_by("id")
        found = (
            people.filter(username=name).first()
            if name
            else next((p for p in people if p.is_site_admin), None)
        )
        if found is None:
            raise CommandError(
                f"There is no user {name!r}."
                if name
                else "There is no administrator yet; name an operator with --by."
            )
        return found
