"""Admission: refuses requests that could never start, for the reasons that the planner would give."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from quotas.core.limits import charge
from quotas.providers.base import QuotaStart
from quotas.providers.calls import words_of
from quotas.providers.registry import deciding_projects
from quotas.services.deciding import checks as provider_checks
from scheduler.core.placement.shape import Shape
from scheduler.core.plan import Decision
from scheduler.core.reasons.messages import sentence
from scheduler.core.snapshot.relaxation import Relaxable, names_of
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import QuotaColumns
from scheduler.core.whatif.idle_cluster import QUOTA_REASONS, IdleCluster
from scheduler.selectors import idle_cluster
from scheduler.services.submission.fields import Inputs
from scheduler.services.submission.submitter import Bound
from scheduler.state.load.request_rows import class_of_request

if TYPE_CHECKING:
    from scheduler.services.submission.job_spec import JobSpec

#: The field of a request that asks for a resource, for each resource of a decision.
_FIELDS: Final = {
    "gpus": "gpu_count",
    "gpu_millis": "gpu_count",
    "cpu_millis": "cpu_cores",
    "memory_mib": "memory",
    "storage_mib": "storage_bytes",
    "running_jobs": "project",
}
#: The field that asks for what a kind of decision is about.
_FIELDS_OF_KINDS: Final = {
    "numa": "numa",
    "shape": "tasks_per_node",
}


class Asked(NamedTuple):
    """What a job asks for, as far as it decides whether the job could ever start."""

    request: RequestClass
    shape: Shape


def asked_of(spec: JobSpec) -> Asked:
    """What a request asks for in the end. Placement terms are left out: operators may change what they ask about."""
    relaxed = names_of(spec.relax)
    request = class_of_request(
        spec.per_task,
        gpu_model="" if Relaxable.GPU_TYPE in relaxed else spec.gpu_models,
        node_selector={},
        tolerations=(),
        affinity={},
        **spec.of_class() | ({"one_domain": False} if Relaxable.NUMA in relaxed else {}),
    )
    shape = Shape(
        tasks=spec.least_tasks,
        most=spec.tasks if spec.min_tasks else 0,
        nodes=spec.nodes or 0,
        tasks_per_node=spec.tasks_per_node or 0,
        pack=spec.pack.level,
        must=spec.pack.required and Relaxable.PACK not in relaxed,
    )
    return Asked(request, shape)


def check_fit(
    inputs: Inputs, asked: Asked, *, job_type: str, bounds: Iterable[Bound], cluster_id: int
) -> None:
    """Name what makes the request impossible, with the number that exists.

    Only the sizes of machines and limits count, not the state of the machines and not who uses them now:
    what is impossible today because of a label, a taint, a partition, a rack or a full cluster is for the
    planner to explain, for operators change these while the job waits.
    """
    lines = [bound for bound in bounds if bound.job_type in ("", job_type)]
    if not reasons_against(asked, lines, idle_cluster(cluster_id)):
        return
    # A machine may have joined since the cluster was read.
    cluster = idle_cluster(cluster_id, fresh=True)
    for decision in reasons_against(asked, lines, cluster):
        field = _field_of(decision, asked, cluster)
        text = sentence(decision.reason, decision.facts)
        if field == "nodes":
            text += f" The cluster has {len(cluster.snapshot.nodes):,} nodes."
        code = "exceeds-quota" if decision.reason in QUOTA_REASONS else "can-never-fit"
        inputs.wrong(field, text, code=code)


def never_allowed_outside(spec: JobSpec, user_id: int) -> str:
    """Why the provider that decides about the project's starts would never allow this one; "" = it may, or is away."""
    name = deciding_projects([spec.project.pk]).get(spec.project.pk)
    if name is None:
        return ""
    start = QuotaStart(
        project_id=spec.project.pk, resources=spec.per_task, job_type=spec.job_type, tasks=spec.least_tasks,
        user_id=user_id,
    )  # fmt: skip
    check = provider_checks.ask([(name, start)]).checks.get(0)
    return "" if check is None or check.possible or check.allowed else words_of(name, check)


def reasons_against(asked: Asked, bounds: Iterable[Bound], cluster: IdleCluster) -> list[Decision]:
    """Why a job could never start, limits first; `bounds` are the limits that it counts on."""
    per_task, tasks, found = asked.request.per_task, asked.shape.tasks, list[Decision]()
    # Most limits are larger than any one job: then nothing has to be asked.
    lines = [bound for bound in bounds if charge(bound.resource, per_task, tasks) > bound.hard]
    if lines:
        columns = QuotaColumns.from_columns(
            id=[bound.line_id for bound in lines],
            owner=[bound.owner for bound in lines],
            resource=[bound.resource for bound in lines],
            hard=[bound.hard for bound in lines],
            gpu_model=[bound.gpu_model for bound in lines],
        )
        found += cluster.never_allowed(asked.request, tasks, columns)
    return [*found, *cluster.never_fits(asked.request, asked.shape)]


def _field_of(decision: Decision, asked: Asked, cluster: IdleCluster) -> str:
    """The field to change, of those that the request has."""
    facts = dict(decision.facts)
    kind, resource, gate = (str(facts.get(name, "")) for name in ("kind", "resource", "gate"))
    if decision.reason in QUOTA_REASONS:
        return _FIELDS.get(resource, "extras")
    if kind in _FIELDS_OF_KINDS:
        return _FIELDS_OF_KINDS[kind]
    if kind == "node":
        return "pack" if resource == "tasks" else _FIELDS[resource]
    if kind == "total":
        if resource in dict(asked.request.per_task.extras):
            return "extras"
        return "nodes" if asked.shape.nodes > len(cluster.snapshot.nodes) else "tasks"
    if gate == "size":
        return "cpu_cores" if asked.request.per_task.cpu_millis > cluster.largest_cpu_millis else "memory"
    # One model of GPU, or several amounts that no node has together.
    return "gpu_count" if asked.request.per_task.gpus else "cpu_cores"
