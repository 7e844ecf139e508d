"""`POST /jobs:act`: one verb on all jobs that a filter finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from django.http import QueryDict
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.once import KEY
from infra.api.fields import ChoiceField
from scheduler.api.base import MAX_REASON, ApiView, body_of, once, person, text_of
from scheduler.api.filters import JobFilter
from scheduler.api.many.arrays import MOST_REFUSED
from scheduler.models import Job
from scheduler.selectors import listed_jobs
from scheduler.services.changes.by_filter import MOST_JOBS, STATES, USUAL_JOBS, act_on_matching
from scheduler.services.submission.fields import Inputs

_FIELDS: Final = ("verb", "filter", "priority", "reason", "most", "after", "dry_run")


class ActSerializer(serializers.Serializer[Any]):
    verb = ChoiceField(choices=[(verb, verb) for verb in STATES])
    filter = serializers.DictField(
        child=serializers.CharField(),
        help_text="Filters of GET /jobs by name, at least one. Jobs that the verb does not change do not match.",
    )
    priority = serializers.CharField(
        required=False, help_text="For reprioritise: a number or the name of a class."
    )
    reason = serializers.CharField(required=False, allow_blank=True, max_length=MAX_REASON)
    most = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=MOST_JOBS,
        default=USUAL_JOBS,
        help_text="Jobs of this call, the oldest.",
    )
    after = serializers.IntegerField(
        required=False,
        min_value=0,
        default=0,
        help_text="Only numbers above this: last of an earlier answer.",
    )
    dry_run = serializers.BooleanField(required=False, default=False, help_text="Nothing is changed.")


class RefusalSerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    job_id = serializers.CharField(help_text="123_3 for an element of an array.")
    detail = serializers.CharField()


class ActAnswerSerializer(serializers.Serializer[Any]):
    """What became of the jobs, by number of jobs; with dry_run, what would."""

    matched = serializers.IntegerField()
    done = serializers.IntegerField()
    unchanged = serializers.IntegerField(help_text="Jobs that were so already.")
    refused = serializers.IntegerField()
    refusals = RefusalSerializer(many=True, help_text=f"The first {MOST_REFUSED}.")
    left = serializers.IntegerField(
        help_text="Jobs that match and were not looked at: send the call with after=last."
    )
    last = serializers.IntegerField(allow_null=True, help_text="The highest number that was looked at.")
    dry_run = serializers.BooleanField()


class ActOnJobs(ApiView):
    """`/jobs:act`"""

    queryset = Job.objects.none()
    serializer_class = ActSerializer
    required_scopes = {"POST": "jobs:write"}
    schema_tags = ["jobs"]

    @extend_schema(
        operation_id="jobs_act", parameters=[KEY], request=ActSerializer, responses=ActAnswerSerializer
    )
    @once
    def post(self, request: Request) -> Response:
        """Cancel, hold, release, requeue or reprioritise all jobs that a filter finds, each with your rights."""
        by = person(request)
        inputs = Inputs(body_of(request))
        inputs.refuse_unknown(_FIELDS)
        verb = inputs.choice("verb", STATES, default="")
        if not verb and not inputs.problems:
            inputs.wrong("verb", f"Required: one of {', '.join(STATES)}.", code="required")
        most = inputs.integer("most", least=1, most=MOST_JOBS, default=USUAL_JOBS) or USUAL_JOBS
        after = inputs.integer("after", least=0, most=2**63 - 1, default=0) or 0
        dry_run = inputs.flag("dry_run", default=False)
        priority = inputs.given("priority")
        if (verb == "reprioritise") != (priority is not None):
            text = "Required with reprioritise." if priority is None else "Is only for reprioritise."
            inputs.wrong("priority", text, code="required" if priority is None else "inconsistent")
        given = inputs.mapping("filter", most=len(JobFilter.base_filters))
        found = _found(inputs, given, request)
        inputs.finish("The jobs cannot be changed")
        reason = text_of(body_of(request).get("reason", ""))
        result = act_on_matching(
            verb, found, by=by, words=urlencode(given), reason=reason, priority=priority, most=most, after=after,
            dry_run=dry_run, names_states="state" in given,
        )  # fmt: skip
        outcome = result.outcome
        refusals = list(outcome.refused.items())[:MOST_REFUSED]
        return Response(
            {
                "matched": result.matched, "done": len(outcome.done), "unchanged": len(outcome.unchanged),
                "refused": len(outcome.refused),
                "refusals": _refusals(refusals),
                "left": result.left, "last": result.last, "dry_run": dry_run,
            },
            status=status.HTTP_200_OK,
        )  # fmt: skip


def _refusals(refused: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
    """The refusals with what each job is called."""
    rows = Job.objects.filter(pk__in=[number for number, _ in refused]).select_related(None)
    called = {job.number: job.said_number for job in rows.only("number", "array_number", "array_index")}
    return [
        {"number": number, "job_id": called[number], "detail": why}
        for number, why in refused
        if number in called
    ]


def _found(inputs: Inputs, given: Mapping[str, Any], request: Request) -> Any:
    """The jobs of the filter; what is wrong with it goes into the inputs."""
    query = QueryDict(mutable=True)
    for name, value in given.items():
        known = name in JobFilter.base_filters and name != "count"
        if not known:
            inputs.wrong(
                f"filter/{str(name)[:60]}", "There is no such filter; see GET /jobs.", code="unknown-field"
            )
        elif isinstance(value, list) and all(isinstance(one, str) for one in value):
            query.setlist(name, value)
        elif isinstance(value, (str, int)) and not isinstance(value, bool):
            query[name] = str(value)
        else:
            inputs.wrong(f"filter/{name}", "Must be text, a number or a list of text.", code="not-text")
    if not given and not any(problem.field.startswith("filter") for problem in inputs.problems):
        inputs.wrong("filter", 'Required: at least one, as {"user": "me"}.', code="required")
    found = JobFilter(query, queryset=listed_jobs(person(request)), request=request)
    for name, messages in found.form.errors.items():
        inputs.wrong(f"filter/{name}", " ".join(messages), code="invalid")
    return None if inputs.problems else found.qs
