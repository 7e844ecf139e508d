"""A job as it is now, and what it waits for."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import or_
from typing import Any, Final

from django.conf import settings
from django.contrib.postgres.expressions import ArraySubquery
from django.db import models
from django.db.models import Case, F, Q, When
from django.utils import timezone

from scheduler.core.lifecycle import ACTIVE, PENDING, PUBLIC, TERMINAL, FailureClass, JobState, PublicState
from scheduler.core.reason_codes import ReasonCategory, ReasonCode
from scheduler.models.job_request import JobName, JobRequest, choices_of


@models.BigAutoField.register_lookup
class AnyOf(models.Lookup):
    """`number__any_of=[...]`: as `__in`, with all of them in one parameter, which thousands of numbers do not slow.

    Or of an `ArraySubquery`, whose rows are read first, and theirs then by key, whatever the database expects.
    """

    lookup_name = "any_of"

    def get_prep_lookup(self) -> Any:
        # Of thousands of numbers the driver would write each by itself.
        return self.rhs if isinstance(self.rhs, ArraySubquery) else f"{{{','.join(map(str, self.rhs))}}}"

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        column, parameters = self.process_lhs(compiler, connection)
        if isinstance(self.rhs, ArraySubquery):
            array, more = compiler.compile(self.rhs)
            return f"{column} = ANY({array})", (*parameters, *more)
        return f"{column} = ANY(%s::bigint[])", (*parameters, self.rhs)


class JobQuerySet(models.QuerySet["Job"]):
    def pending(self) -> JobQuerySet:
        return self.in_states(PENDING)

    def never_satisfied(self) -> JobQuerySet:
        """Jobs whose dependencies can never be satisfied: limits on pending jobs count none of these."""
        return self.in_states([JobState.BLOCKED]).filter(
            reason_code=ReasonCode.DEPENDENCY_NEVER_SATISFIED.value
        )

    def queued(self) -> JobQuerySet:
        """What the planner looks at."""
        return self.in_states([JobState.QUEUED])

    def active(self) -> JobQuerySet:
        """Jobs that hold resources."""
        return self.in_states(ACTIVE)

    def finished(self) -> JobQuerySet:
        return self.in_states(TERMINAL)

    def not_over(self) -> JobQuerySet:
        """Jobs that wait or run."""
        return self.filter(unfinished())

    def in_states(self, states: Collection[str]) -> JobQuerySet:
        """Jobs in one of these states, asked for by what is indexed: `UnfinishedJob` and `unsuccessful`."""
        asked = [state for state in (*OVER, *NOT_OVER) if state in states]
        if asked and not set(asked) & set(OVER):
            return self.filter(unfinished(), state__in=asked)
        if asked and set(asked) <= set(UNSUCCESSFUL):
            return self.filter(unsuccessful__in=asked)
        if asked == [JobState.COMPLETED]:
            return self.filter(state=JobState.COMPLETED, unsuccessful=None)
        return self.filter(state__in=asked)

    def in_public_states(self, states: list[PublicState] | list[str]) -> JobQuerySet:
        wanted = {PublicState(s) for s in states}
        return self.in_states([inner for inner, outer in PUBLIC.items() if outer in wanted])

    def in_projects(self, keys: Collection[int]) -> JobQuerySet:
        """Of these projects; the newest `count` of a few projects are looked for in each of them.

        In one go the database expects all of them to have as many of each state as the others have: where they
        have none it would look through everybody's jobs.
        """
        found = self.filter(project_id__in=list(keys))
        found._arms = tuple(keys) if 1 < len(keys) <= MOST_ARMS else ()
        return found

    _arms: tuple[int, ...] = ()
    #: No more than `FEW`: as cheap to count as to look at.
    are_few = False

    def _clone(self) -> JobQuerySet:
        clone: JobQuerySet = super()._clone()  # type: ignore[misc]
        clone._arms, clone.are_few = self._arms, self.are_few
        return clone

    def __getitem__(self, wanted: Any) -> Any:
        if not self._arms or not isinstance(wanted, slice) or wanted.stop is None or wanted.step is not None:
            return super().__getitem__(wanted)
        query: Any = self.query
        if self._result_cache is not None or query.order_by not in _BY_NUMBER:
            return super().__getitem__(wanted)
        if query.is_sliced or query.combinator or query.distinct:
            return super().__getitem__(wanted)
        whole = self.all()
        whole._arms = ()
        alone = whole.prefetch_related(None)
        if self._fields is None:  # type: ignore[attr-defined]  # values were not asked for
            alone = alone.select_related(None)
        arms = [alone.filter(project_id=key).values("number")[: wanted.stop] for key in self._arms]
        return whole.filter(number__in=arms[0].union(*arms[1:], all=True))[wanted]

    def with_reason(self) -> JobQuerySet:
        """Only these can have a reason to wait."""
        return self.not_over()

    def of_people(self, keys: Collection[int]) -> JobQuerySet:
        """Submitted by these: their newest are looked for among their own jobs, in all projects at once."""
        found = self.filter(user__in=list(keys))
        found._arms = ()
        return found

    def of_array(self, number: int) -> JobQuerySet:
        """The elements of an array by its number; these are looked up first and meant by their own numbers."""
        rows = JobRequest.objects.filter(array_number=number).order_by()
        found = self.filter(number__any_of=list(rows.values_list("number", flat=True)))
        found._arms = ()
        return found

    def called(self, text: str, *others: Q) -> JobQuerySet:
        """Whose names contain this, in any case, or that one of the others holds for."""
        asked = Q(name__icontains=text)
        names = list(JobName.objects.filter(asked).order_by().values_list("name", flat=True)[: FEW + 1])
        # Each name has a job: where there are that many names, many jobs match as well.
        return self.matching(asked, *others, found_by=Q(name__one_of=names) if len(names) <= FEW else None)

    def matching(self, asked: Q, *others: Q, found_by: Q | None = None) -> JobQuerySet:
        """Those whose request this holds for, words or labels, or that one of the others holds for.

        `found_by` asks the same in the words of an index, where these are not those of `asked`.

        Where few match, an index finds them at once, and whatever else is asked of them is asked by their numbers;
        where many do, the newest are found soon by looking at one after the other. Requests are looked for by
        themselves, without a look at who may see them: nothing is shown of what this query set leaves out.
        """
        numbers = list(_some_numbers(JobRequest.objects.filter(found_by or asked)))
        for other in others:
            numbers += _some_numbers(self.filter(other))
        if len(numbers) > FEW:
            return self.filter(reduce(or_, others, asked))
        found = self.filter(number__any_of=sorted(set(numbers)))
        found._arms = ()  # so few are found at once in all projects
        found.are_few = True
        return found


def _some_numbers(rows: models.QuerySet[Any, Any]) -> models.QuerySet[Any, int]:
    """The numbers of all of these, or of one more than `FEW`."""
    return rows.order_by().values_list("number", flat=True)[: FEW + 1]


#: Projects of one person whose jobs are looked for in each by itself.
MOST_ARMS: Final = 20
_BY_NUMBER: Final = (("-number",), ("number",), ("-pk",), ("pk",))
OVER: Final = sorted(state.value for state in TERMINAL)
#: What a job that is over and did not complete is.
UNSUCCESSFUL: Final = sorted(state.value for state in TERMINAL - {JobState.COMPLETED})
NOT_OVER: Final = sorted(state.value for state in set(JobState) - TERMINAL)
#: This number of rows is read one by one in a few milliseconds.
FEW: Final = 5000


class Job(JobRequest):
    """A job as it is now: whose, in which queue and state, why it waits, when it ran, how it ended.

    What was asked for is in its `JobRequest`, whose columns read as this row's own. This row is the one that moves:
    it is small, its pages have room for the next versions of their rows, and no index names what a move changes
    (PostgreSQL's heap-only tuples), so that a move writes one short version and no index, and the end of a job that
    completes, too. Which jobs are not over has a table of its own: `UnfinishedJob`.
    `generation` rises with each change that scheduling cares about.
    """

    # No index of their own where one of Meta.indexes begins with the same column: each costs every insert. References
    # are checked by the database once a statement (infra.db.references).
    request = models.OneToOneField(
        JobRequest,
        on_delete=models.CASCADE,
        parent_link=True,
        primary_key=True,
        db_column="number",
        db_constraint=False,
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        related_name="jobs",
        db_index=False,
        db_constraint=False,
    )
    project = models.ForeignKey(
        "accounts.Project", on_delete=models.PROTECT, related_name="jobs", db_index=False, db_constraint=False
    )
    queue = models.ForeignKey(
        "scheduler.Queue", on_delete=models.PROTECT, related_name="jobs", db_index=False, db_constraint=False
    )

    state = models.CharField(max_length=16, choices=choices_of(JobState), default=JobState.CREATED)
    #: Its state once it is over, else null. No index names it: the end of a job would write all its indexes.
    outcome = models.GeneratedField(
        expression=Case(When(state__in=OVER, then=F("state"))),
        output_field=models.CharField(max_length=16, null=True),
        db_persist=True,
    )
    #: Its state once it has failed or is cancelled, else null; a trigger keeps it so. Indexes name it, for most jobs
    #: complete.
    unsuccessful = models.CharField(max_length=16, null=True, blank=True, editable=False)
    #: Who holds it, when it is held: "user", "lead" (of its project) or "admin".
    held_by = models.CharField(max_length=8, blank=True)
    reason_code = models.CharField(max_length=32, choices=choices_of(ReasonCode), blank=True)
    reason_category = models.CharField(max_length=8, choices=choices_of(ReasonCategory), blank=True)
    reason_text = models.TextField(blank=True)
    reason_details = models.JSONField(default=dict, blank=True)
    reason_at = models.DateTimeField(null=True, blank=True)
    expected_start_at = models.DateTimeField(null=True, blank=True)
    #: What an operator has added to its effective priority, until when; `priority` stays as it was asked for.
    boost = models.PositiveSmallIntegerField(default=0, db_default=0)
    boost_until_at = models.DateTimeField(null=True, blank=True)

    # A gang that gathers nodes: until when, which, and how often it had to give them back.
    assembly_until_at = models.DateTimeField(null=True, blank=True)
    assembly_node_ids = models.JSONField(default=list, blank=True)
    assemblies_failed = models.PositiveSmallIntegerField(default=0)

    #: While it is moved: `leave`, names of nodes where it may not start, and `only`, those where it may; null else.
    move_terms = models.JSONField(null=True, blank=True)

    #: The constraints of `relax` that are relaxed by now; null = none.
    relaxed = models.JSONField(null=True, blank=True)

    #: Its last checkpoint, as it reported it: work before it is not lost.
    saved_at = models.DateTimeField(null=True, blank=True)
    saved_path = models.CharField(max_length=1024, blank=True)

    #: The epoch of its latest attempt; strictly rises.
    epoch = models.PositiveIntegerField(default=0)
    exit_code = models.IntegerField(null=True, blank=True)
    exit_signal = models.PositiveSmallIntegerField(null=True, blank=True)
    #: Why it ended as it did, in words.
    end_text = models.CharField(max_length=300, blank=True)
    #: Why its last ended attempt did not succeed, as a class; empty where it did, or was cancelled.
    failure_class = models.CharField(
        max_length=16, blank=True, choices=choices_of(FailureClass), default="", db_default=""
    )

    #: When its deadline, its wait limit and what it relaxes have to be looked at next (`services.jobs.deadlines`); null
    #: = never.
    check_at = models.DateTimeField(null=True, blank=True)
    eligible_at = models.DateTimeField(null=True, blank=True)
    scheduled_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    completed_at = models.DateTimeField(null=True, blank=True)
    generation = models.PositiveIntegerField(default=1)

    objects = JobQuerySet.as_manager()  # type: ignore[misc]  # the plugin: another manager than its parent has

    class Meta:
        ordering = ["-number"]
        # None names a column that changes before a job fails or is cancelled; but for gangs. `request` is its number.
        # Ascending: new rows have the largest numbers, and pages that grow at their end are left full when they split.
        indexes = [
            # Gangs whose nodes are being gathered: each cycle asks, and there are hardly any.
            models.Index(
                fields=["queue", "request"],
                name="job_gathering",
                condition=Q(assembly_until_at__isnull=False),
            ),
            # Jobs with a deadline, a wait limit or constraints to relax, until these are settled.
            models.Index(fields=["check_at"], name="job_to_check", condition=Q(check_at__isnull=False)),
            # Whose and where, newest first, read from their ends. A list of failed (cancelled) jobs is read from the
            # index alone, not from the rows of the others; one of completed jobs leaves those out.
            *(
                models.Index(fields=[of, "request", "unsuccessful"], name=f"jobs_of_{of}")
                for of in ("user", "project", "queue")
            ),
            # Of jobs that are over there may be millions. Most jobs of all completed: the newest of those are found
            # soon without an index.
            models.Index(
                fields=["unsuccessful", "request"],
                name="job_unsuccessful",
                condition=Q(unsuccessful__isnull=False),
            ),
        ]
        constraints = [
            models.CheckConstraint(
                name="job_state_known", condition=Q(state__in=[s.value for s in JobState])
            ),
            models.CheckConstraint(
                name="job_boost_ends", condition=Q(boost=0) | Q(boost__lte=100, boost_until_at__isnull=False)
            ),
            models.CheckConstraint(
                name="job_ended_has_time",
                condition=~Q(state__in=[s.value for s in sorted(TERMINAL)]) | Q(completed_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.number} {self.name}"

    @property
    def said_number(self) -> str:
        """The number as people say it: `123_3` for an element of array 123."""
        return said_number(self.number, self.array_number, self.array_index)

    @property
    def public_state(self) -> PublicState:
        return PUBLIC[JobState(self.state)]

    @property
    def boost_now(self) -> int:
        """What its boost adds at this moment."""
        ends = self.boost_until_at
        return self.boost if self.boost and ends is not None and ends > timezone.now() else 0

    @property
    def likely_start(self) -> Any:
        """The StartForecast of a waiting job if its row brought it along; asks the database for nothing."""
        if self.state != JobState.QUEUED or not Job.forecast.is_cached(self):
            return None
        return getattr(self, "forecast", None)

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def is_pending(self) -> bool:
        return self.state in PENDING

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE


def said_number(number: int, array_number: int | None, array_index: int | None) -> str:
    """`123_3` for the element 3 of array 123, else the job's own number."""
    return str(number) if array_number is None else f"{array_number}_{array_index}"


class UnfinishedJob(models.Model):
    """A job that waits or runs: all of these have a row here, which goes as the job ends. Triggers on jobs see to it.

    An index of jobs that are not over would be named by the last move of each, and that move would write them all.
    """

    pk = models.CompositePrimaryKey("queue_id", "number")
    queue_id = models.BigIntegerField()
    number = models.BigIntegerField()

    def __str__(self) -> str:
        return f"job {self.number} in queue {self.queue_id}"


def unfinished() -> Q:
    """Of a job: that it waits or runs.

    Joined, the database would look for the newest of few among all jobs, for it expects to meet them soon.
    """
    return Q(number__any_of=ArraySubquery(UnfinishedJob.objects.order_by().values("number")))


class DependencyKind(models.TextChoices):
    """What must become of the other job, or that data are ready."""

    COMPLETION = "completion", "ends (any result)"
    SUCCESS = "success", "completes"
    FAILURE = "failure", "fails"
    CHECKPOINT = "checkpoint", "reports a checkpoint"
    DATA = "data", "are ready"


class JobDependency(models.Model):
    """One job waits for another, for all elements of an array, or for data of its project.

    Rows of one `group` belong together: `need` of them are enough. In group 0 each has to hold.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="dependencies", db_index=False)
    on = models.ForeignKey(Job, on_delete=models.CASCADE, null=True, related_name="dependants")
    #: The number of an array whose elements are waited for, all of them.
    on_array = models.BigIntegerField(null=True, blank=True)
    #: The name of a dataset, for kind `data`.
    data = models.CharField(max_length=200, blank=True)
    kind = models.CharField(max_length=12, choices=DependencyKind, default=DependencyKind.SUCCESS)
    group = models.PositiveSmallIntegerField(default=0)
    need = models.PositiveSmallIntegerField(default=1)
    #: null while open, True when it holds, False when it never will.
    satisfied = models.BooleanField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="dependency_once", fields=["job", "on", "kind", "group"]),
            models.UniqueConstraint(
                name="dependency_on_data_once", fields=["job", "data", "group"], condition=~Q(data="")
            ),
            models.CheckConstraint(name="dependency_not_on_itself", condition=~Q(job=F("on"))),
            models.CheckConstraint(
                name="dependency_on_one_thing",
                condition=Q(on__isnull=False, on_array__isnull=True, data="")
                | Q(on__isnull=True, on_array__isnull=False, data="")
                | (Q(on__isnull=True, on_array__isnull=True, kind="data") & ~Q(data="")),
            ),
        ]
        indexes = [
            models.Index(
                fields=["data"], name="dependency_open_data", condition=~Q(data="") & Q(satisfied=None)
            ),
            models.Index(
                fields=["on_array"],
                name="dependency_open_array",
                condition=Q(on_array__isnull=False, satisfied=None),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} after {self.kind} of {self.on_id or self.on_array or self.data}"


class Dataset(models.Model):
    """Data that jobs of a project wait for: somebody says that they are ready, and where."""

    project = models.ForeignKey("accounts.Project", on_delete=models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=200)
    path = models.CharField(max_length=1024, blank=True)
    #: null once it was withdrawn.
    ready_at = models.DateTimeField(null=True, blank=True)
    declared_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(name="dataset_once", fields=["project", "name"]),
        ]

    def __str__(self) -> str:
        return self.name
