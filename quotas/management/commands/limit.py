"""`manage.py limit`: see, set and take away single limits from the command line."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from accounts.models import Organization, Project, User
from infra import request_context
from infra.errors import MusterError
from quotas.core.resources import BadAmount, parse_mib
from quotas.models import Quota, QuotaResource
from quotas.selectors.quota_status import LineState, line_states, lines_on_path
from quotas.services.impact import shown
from quotas.services.quota_lines import AMOUNTS, Subject, remove_line, set_line

SUBJECT: Final = (
    ("organization", Organization, "slug"),
    ("project", Project, "slug"),
    ("user", User, "username"),
)


class Command(BaseCommand):
    help = "Shows, sets and takes away limits of organizations, projects, people in projects, and people."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        listing = verbs.add_parser("list", help="limits and their usage")
        listing.add_argument(
            "--path", metavar="PROJECT", help="all limits that apply to the jobs of a project"
        )
        change = verbs.add_parser("set", help="make a limit, or change it")
        change.add_argument("resource", choices=QuotaResource.values)
        change.add_argument(
            "values", nargs="+", metavar="NAME=VALUE",
            help=f"{', '.join(AMOUNTS)}, enforce (yes, no) or converge_after_seconds; `none` for no bound,"
            " memory and storage with or without a unit (500Gi)",
        )  # fmt: skip
        change.add_argument("--gpu-model", default="", help="count this GPU model only")
        change.add_argument("--job-type", default="", help="count jobs of this type only")
        change.add_argument("--generation", type=int, help="generation to change; 0: create only")
        for verb in (listing, change):
            for name, _, what in SUBJECT:
                verb.add_argument(f"--{name}", help=f"the {what} of whose it is")
        remove = verbs.add_parser("remove", help="remove a limit")
        remove.add_argument("id", type=int, help="its number in the list")
        for verb in (change, remove):
            verb.add_argument("--reason", required=True, help="reason; recorded in the audit trail")
            verb.add_argument(
                "--by", default="", help="the operator who does it (default: the first administrator)"
            )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with request_context.acting(address="local"):
                getattr(self, f"_{options['verb']}")(options)
        except MusterError as error:
            raise CommandError(str(error)) from error

    def _list(self, options: dict[str, Any]) -> None:
        if options["path"]:
            lines = lines_on_path(self._one(Project, "slug", options["path"]))
        else:
            wanted = {name: one for name, one in self._subject(options).items() if one is not None}
            rows = Quota.objects.filter(**wanted).select_related("project", "organization", "user")
            lines = list(rows.order_by("id"))
        states = line_states(lines)
        for line in lines:
            self.stdout.write(_words(states[line.pk]))
        if not lines:
            self.stdout.write("There is no such limit.")

    def _set(self, options: dict[str, Any]) -> None:
        resource = options["resource"]
        line = set_line(
            subject=Subject(**self._subject(options)),
            resource=resource,
            gpu_model=options["gpu_model"],
            job_type=options["job_type"],
            changes=dict(_pair(each, resource) for each in options["values"]),
            by=self._operator(options["by"]),
            reason=options["reason"],
            expected_generation=options["generation"],
        )
        self.stdout.write(_words(line_states([line])[line.pk]))

    def _remove(self, options: dict[str, Any]) -> None:
        line = self._one(Quota, "pk", options["id"])
        remove_line(line=line, by=self._operator(options["by"]), reason=options["reason"])
        self.stdout.write(f"The limit of {line} is removed.")

    def _subject(self, options: dict[str, Any]) -> dict[str, Any]:
        return {
            name: self._one(model, key, options[name]) if options[name] else None
            for name, model, key in SUBJECT
        }

    def _operator(self, name: str) -> User:
        if name:
            named: User = self._one(User, "username", name)
            return named
        user = next((user for user in User.objects.order_by("id") if user.is_site_admin), None)
        if user is None:
            raise CommandError("There is no administrator yet; name an operator with --by.")
        return user

    def _one(self, model: Any, key: str, value: Any) -> Any:
        found = model.objects.filter(**{key: value}).first()
        if found is None:
            known = ", ".join(
                str(one) for one in model.objects.order_by(key).values_list(key, flat=True)[:10]
            )
            raise CommandError(
                f"There is no {model._meta.verbose_name} {value!r}. There is: {known or 'none'}."
            )
        return found


def _pair(text: str, resource: str) -> tuple[str, Any]:
    """`hard=500Gi` -> ("hard", 512000)."""
    name, _, value = text.partition("=")
    name, value = name.strip().replace("-", "_"), value.strip().lower()
    if name == "enforce":
        if value not in ("yes", "no"):
            raise CommandError("enforce is yes or no.")
        return name, value == "yes"
    if value == "none":
        return name, None
    if resource.endswith("_mib") and name in AMOUNTS and not value.isdecimal():
        try:
            return name, parse_mib(value)
        except BadAmount as bad:
            raise CommandError(f"{name}: {bad}.") from bad
    if not value.isdecimal():
        raise CommandError(f"{text}: write NAME=VALUE with a whole number, or none.")
    return name, int(value[:19])


def _words(state: LineState) -> str:
    """`12  project vision, H100 gpu_millis: 2 GPUs in use of 8 GPUs, 4 GPUs free`."""
    line = state.line
    parts = [f"{shown(line.resource, state.used)} in use"]
    if state.bound is not None:
        parts[0] += f" of {shown(line.resource, state.bound)}"
    if state.over:
        parts.append("over, grandfathered")
    for name in ("borrowed", "lent"):
        if amount := getattr(state, name):
            parts.append(f"{shown(line.resource, amount)} {name}")
    parts.append("no bound" if state.free is None else f"{shown(line.resource, state.free)} free")
    what = " ".join(part for part in (line.gpu_model, line.resource, line.job_type) if part)
    return f"{line.pk:>6}  {line.owner}, {what}: {', '.join(parts)} (generation {line.generation})"
