"""The queries behind a snapshot; braces are filled in by what they are read for, `%s` by its parameters."""

from __future__ import annotations

from typing import Final

from scheduler.core.lifecycle import ACTIVE as ACTIVE_STATES
from scheduler.core.lifecycle import LIVE_ATTEMPT

ACTIVE: Final = sorted(state.value for state in ACTIVE_STATES)
LIVE: Final = sorted(state.value for state in LIVE_ATTEMPT)
#: Written out, not given as parameters, so that indexes on just those rows serve a statement that is planned once.
_IS_ACTIVE: Final = f"IN ({', '.join(map(repr, ACTIVE))})"
_IS_LIVE: Final = f"IN ({', '.join(map(repr, LIVE))})"


def _ms(column: str) -> str:
    return f"floor(extract(epoch FROM {column}) * 1000)::bigint"


def _mark(code: str, text: str) -> str:
    """The code in the upper half, the words in the lower."""
    return f"((hashtext({code})::bigint << 32) | (hashtext({text})::bigint & 4294967295))"


def _number_of_type(column: str) -> str:
    """A job type as a number that is never 0: lines and jobs are compared by it."""
    return f"(hashtext({column})::bigint + 4294967296)"


MARKS: Final = f"""
SELECT {_mark("code", "words")}
FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS reason(code, words, place) ORDER BY place
"""

_PAUSED: Final = """CASE WHEN cluster.paused THEN concat('with the whole cluster ', cluster.name,
        nullif(' by ' || cluster.paused_by, ' by '),
        to_char(cluster.paused_at AT TIME ZONE 'UTC', '" since "YYYY-MM-DD"T"HH24:MI:SS"Z"'),
        nullif(': ' || cluster.paused_reason, ': ')) END"""

#: What applying a plan needs of its cluster; whether anybody keeps quota back; whether there is any budget.
APPLIED_TO: Final = f"""
SELECT {_ms("statement_timestamp()")}, cluster.name, cluster.backend, {_PAUSED},
    EXISTS (SELECT FROM quotas_quota WHERE lending_limit IS NOT NULL AND enforce),
    EXISTS (SELECT FROM quotas_budget)
FROM scheduler_cluster cluster WHERE cluster.id = %s
"""

CLUSTER: Final = f"""
SELECT {_ms("statement_timestamp()")}, cluster.name, cluster.backend,
    {_PAUSED},
    profile.policy, profile.tie_breakers::text, profile.strict_order, profile.placement,
    profile.score_weights::text, profile.plugins::text,
    profile.preemption_enabled, profile.preemption::text,
    (SELECT coalesce(json_agg(json_build_array(class.value, ARRAY(
            SELECT victim.value FROM scheduler_priorityclass_preempts may
            JOIN scheduler_priorityclass victim ON victim.id = may.to_priorityclass_id
            WHERE may.from_priorityclass_id = class.id ORDER BY 1
        )) ORDER BY class.value), '[]')::text FROM scheduler_priorityclass class),
    profile.backfill, profile.options::text,
    (SELECT coalesce(json_agg(json_build_array(queue.id, own.policy, own.tie_breakers, own.strict_order,
            own.placement, own.score_weights, own.plugins, own.backfill, own.options) ORDER BY queue.id), '[]')::text
        FROM scheduler_queue queue JOIN scheduler_schedulerprofile own ON own.id = queue.profile_id
        WHERE queue.cluster_id = cluster.id AND queue.profile_id IS DISTINCT FROM cluster.profile_id),
    (SELECT coalesce(json_agg(json_build_array(class.value, round(class.boost_per_hour * 1000)::int)
            ORDER BY class.value), '[]')::text
        FROM scheduler_priorityclass class
        WHERE EXISTS (SELECT FROM scheduler_priorityclass one WHERE one.boost_per_hour > 0)),
    (SELECT coalesce(json_object_agg(class.name, class.value), '{{}}')::text FROM scheduler_priorityclass class)
FROM scheduler_cluster cluster LEFT JOIN scheduler_schedulerprofile profile ON profile.id = cluster.profile_id
WHERE cluster.id = %s
"""

#: What an operator has added to a job's priority for now.
_BOOST: Final = "CASE WHEN job.boost_until_at > statement_timestamp() THEN job.boost ELSE 0 END"

#: What makes a request class, last in each row of a job.
_CLASS: Final = """job.cpu_millis, job.memory_mib, job.storage_mib, job.gpus, job.gpu_millis, job.gpu_model,
    job.gpu_slice, coalesce(job.cpu_limit_millis, 0), coalesce(job.memory_limit_mib, 0),
    job.numa = 'one', job.extras::text, job.node_selector::text, job.tolerations::text, job.affinity::text"""
CLASS_WIDTH: Final = 14

#: The lower half of the array's UUID: one number per array, the same in every cycle.
_ARRAY: Final = """CASE WHEN job.array_id IS NULL THEN 0
        ELSE ('x' || right(replace(job.array_id::text, '-', ''), 15))::bit(60)::bigint END"""

#: Whether it may be stopped for another: one that runs at most once would be over.
_MAKES_WAY: Final = "(job.preemptible AND job.restart_policy <> 'never')"
PENDING_COLUMNS: Final = (
    "id", "queue_id", "project_id", "user_id", "priority", "submitted_ms", "eligible_ms", "tasks", "nodes",
    "tasks_per_node", "time_limit_seconds", "generation", "array_id", "array_max_running", "awaited",
    "deadline_ms", "promised_ms", "most_tasks", "pack", "assembly_seconds",
    "assembling_until_ms", "assemblies_failed", "job_type", "elastic", "preemptible",
)  # fmt: skip
THESE_QUEUES: Final = "queue.id = ANY(%s::bigint[])"
#: For the applier: counting what runs may read all that the queue ever had.
IF_BOUND: Final = "queue.max_concurrent_jobs > 0"
THESE_NODES: Final = "node.id = ANY(%s::bigint[])"
THESE_DEVICES: Final = "device.id = ANY(%s::bigint[])"
DEVICES_OF_CLUSTER: Final = "device.node_id IN (SELECT id FROM scheduler_node WHERE cluster_id = %s)"
THESE_JOBS: Final = """job.number = ANY(%s::bigint[])
    AND job.queue_id = ANY(%s::bigint[]) AND job.project_id = ANY(%s::bigint[])"""
OF_CLUSTER: Final = "job.queue_id IN (SELECT id FROM scheduler_queue WHERE cluster_id = %s)"
#: How near its tasks are to be, as the snapshot numbers it.
_PACK: Final = """array_position(ARRAY['', 'node', 'rack', 'zone'], job.pack::text) - 1
        + CASE WHEN job.pack_required THEN 8 ELSE 0 END"""
_JOBS: Final = f"""
SELECT job.number, job.queue_id, job.project_id, job.user_id, job.priority, {_ms("job.created_at")},
    coalesce({_ms("job.eligible_at")}, 0), coalesce(job.min_tasks, job.tasks),
    coalesce(job.nodes, 0), coalesce(job.tasks_per_node, 0), coalesce(job.time_limit_seconds, 0),
    job.generation, {_ARRAY}, coalesce(job.array_max_running, 0),
    (job.number, job.epoch) IN (SELECT stopped_for, stopped_for_epoch FROM scheduler_attempt
        WHERE stopped_for IS NOT NULL AND stopped_for_epoch IS NOT NULL
        AND stop_asked_at > statement_timestamp() - interval '15 minutes'
        UNION ALL SELECT for_job, for_epoch FROM scheduler_suspension
        WHERE asked_at > statement_timestamp() - interval '15 minutes')
        OR (job.number, job.epoch) IN (SELECT resized_for, resized_for_epoch FROM scheduler_attempt
        WHERE resized_for IS NOT NULL AND resized_for_epoch IS NOT NULL
        AND resized_at > statement_timestamp() - interval '15 minutes'),
    coalesce({_ms("job.deadline_at")}, 0), coalesce({_ms("job.expected_start_at")}, 0),
    CASE WHEN job.min_tasks IS NULL THEN 0 ELSE job.tasks END,
    {_PACK},
    coalesce(job.assembly_timeout_seconds, 0),
    CASE WHEN job.state = 'reserved' THEN coalesce({_ms("job.assembly_until_at")}, 1) ELSE 0 END,
    job.assemblies_failed,
    {_number_of_type("job.job_type")}, job.elastic, {_MAKES_WAY},
    {_mark("job.reason_code", "job.reason_text")}, coalesce({_ms("job.begin_at")}, 0),
    project.active AND person.is_active, {_BOOST},
    {_CLASS}
FROM scheduler_job job
    JOIN accounts_project project ON project.id = job.project_id
    JOIN accounts_user person ON person.id = job.user_id
WHERE {{which}}
"""
#: A limit is in the text only where there is one: planned once, for whatever limit, the server would count on few.
PENDING: Final = _JOBS + "AND job.state IN ('queued', 'reserved') ORDER BY job.number {limit} {lock}"
#: Every job that waited or ran in a span of time, in the columns of a pending one; `job.created_at` decides
#: which came before. Those that were given up before they ever started are left out.
PAST: Final = (
    _JOBS.format(which=OF_CLUSTER)
    + """AND job.created_at < %s AND (job.completed_at IS NULL OR job.completed_at > %s)
    AND (job.started_at IS NOT NULL OR job.state IN ('queued', 'reserved')) ORDER BY job.number"""
)
#: How each of these jobs went: when it could start at the earliest and did, how long its last attempt ran (to
#: now, where it runs on), whether that is all, for how long it stood still in that, and for how long its tasks
#: held something, added up, where its size is open.
PAST_RUNS: Final = f"""
SELECT job.number,
    {
    _ms(
        "CASE WHEN EXISTS (SELECT 1 FROM scheduler_jobdependency edge WHERE edge.job_id = job.number)"
        " THEN coalesce(job.eligible_at, job.created_at) ELSE job.created_at END"
    )
},
    coalesce({_ms("last.started_at")}, -1),
    coalesce({_ms("coalesce(last.ended_at, statement_timestamp())")} - {_ms("last.started_at")}, 0),
    last.ended_at IS NOT NULL,
    coalesce(last.suspended_ms + coalesce(
        {_ms("coalesce(last.ended_at, statement_timestamp())")} - {_ms("last.suspended_at")}, 0), 0),
    CASE WHEN job.min_tasks IS NULL THEN 0 ELSE coalesce((SELECT
        sum({_ms("coalesce(held.released_at, statement_timestamp())")} - {_ms("held.held_at")})
        FROM scheduler_allocation held WHERE held.attempt_id = last.id), 0) END::bigint
FROM scheduler_job job LEFT JOIN LATERAL (
    SELECT attempt.id, attempt.started_at, attempt.ended_at, attempt.suspended_at, attempt.suspended_ms
    FROM scheduler_attempt attempt
    WHERE attempt.job_id = job.number AND attempt.started_at IS NOT NULL ORDER BY attempt.epoch DESC LIMIT 1
) last ON true
WHERE job.number = ANY(%s::bigint[]) ORDER BY job.number
"""

RUNNING_COLUMNS: Final = (
    "id", "attempt_id", "queue_id", "project_id", "user_id", "priority", "started_ms", "expected_end_ms",
    "array_id", "preemptible", "times_preempted", "stop_by_ms", "stopped_for", "saved_ms", "job_type",
    "least_tasks", "most_tasks", "resized_ms", "resized_for", "pack", "pause",
)  # fmt: skip
#: Since when it is told to end, or to stand still and has not yet.
_TOLD: Final = """coalesce(attempt.stop_asked_at,
        CASE WHEN attempt.suspended_at IS NULL THEN attempt.suspend_asked_at END)"""
_RUNNING_JOBS: Final = f"""
SELECT job.number, attempt.id, job.queue_id, job.project_id, job.user_id,
    least(100, job.priority + {_BOOST}),
    {_ms("coalesce(attempt.started_at, attempt.scheduled_at)")},
    coalesce({_ms("coalesce(attempt.started_at, attempt.scheduled_at)")} + 1000 * job.time_limit_seconds
        + attempt.suspended_ms + coalesce({_ms("statement_timestamp()")} - {_ms("attempt.suspended_at")}, 0), 0),
    {_ARRAY}, {_MAKES_WAY},
    CASE WHEN attempt.epoch > 1 THEN (SELECT count(*) FROM scheduler_attempt earlier
        WHERE earlier.job_id = job.number AND earlier.stopped_for IS NOT NULL) ELSE 0 END
        + CASE WHEN attempt.suspended_ms > 0 THEN (SELECT count(*) FROM scheduler_suspension before
            WHERE before.attempt_id = attempt.id) ELSE 0 END,
    coalesce({_ms(_TOLD)} + 1000 * coalesce(attempt.grace_seconds, 60), 0),
    CASE WHEN attempt.suspend_asked_at IS NULL OR attempt.stop_asked_at IS NOT NULL
        THEN coalesce(attempt.stopped_for, 0)
        ELSE coalesce((SELECT still.for_job FROM scheduler_suspension still
            WHERE still.attempt_id = attempt.id ORDER BY still.id DESC LIMIT 1), 0) END,
    CASE WHEN job.saved_at >= coalesce(attempt.started_at, attempt.scheduled_at)
        THEN {_ms("job.saved_at")} ELSE 0 END,
    {_number_of_type("job.job_type")},
    CASE WHEN job.elastic THEN coalesce(job.min_tasks, job.tasks) ELSE 0 END,
    CASE WHEN job.elastic THEN job.tasks ELSE 0 END,
    coalesce({_ms("attempt.resized_at")}, 0), coalesce(attempt.resized_for, 0), {_PACK},
    CASE WHEN attempt.suspended_at IS NOT NULL THEN 2
        WHEN attempt.suspend_asked_at IS NOT NULL AND attempt.stop_asked_at IS NULL THEN 1 ELSE 0 END, {_CLASS}
FROM scheduler_attempt attempt {{job}}
WHERE attempt.state {_IS_LIVE}
"""
#: One by one by their keys. Left to choose, the server reads every job that ever was once some thousands run: of
#: 12,000 among a million in 1.3 s and not in 0.5, and the longer the more are kept.
_ONE_BY_ONE: Final = (
    "CROSS JOIN LATERAL (SELECT * FROM scheduler_job WHERE number = attempt.job_id OFFSET 0) job"
)
RUNNING: Final = _RUNNING_JOBS.format(job=_ONE_BY_ONE) + f" AND {OF_CLUSTER} ORDER BY job.number"
RUNNING_IN_ARRAYS_OF: Final = (
    _RUNNING_JOBS.format(job="JOIN scheduler_job job ON job.number = attempt.job_id")
    + """AND job.array_id = ANY(ARRAY(
        SELECT DISTINCT array_id FROM scheduler_job
        WHERE number = ANY(%s::bigint[]) AND array_max_running IS NOT NULL
    )) AND job.queue_id = ANY(%s::bigint[]) AND job.project_id = ANY(%s::bigint[])
ORDER BY job.number"""
)

#: What jobs are called, read only where a job has terms about others of its project.
NAMES: Final = """
SELECT number, name, labels::text FROM scheduler_job
WHERE number = ANY(%s::bigint[]) AND project_id = ANY(%s::bigint[])
"""

ALLOCATIONS: Final = f"""
SELECT allocation.id, attempt.job_id, allocation.rank, allocation.node_id, allocation.cpu_millis,
    allocation.memory_mib, allocation.storage_mib, allocation.device_ids, allocation.gpu_millis,
    CASE WHEN job.elastic AND attempt.stop_asked_at IS NULL THEN EXISTS (SELECT 1 FROM scheduler_task task
        WHERE task.attempt_id = attempt.id AND task.rank = allocation.rank
            AND task.state NOT IN ('assigned', 'starting', 'running'))
        ELSE false END,
    CASE WHEN job.numa = 'one' THEN coalesce(allocation.numa_domain, -1) ELSE -1 END,
    allocation.extras::text
FROM scheduler_allocation allocation
    JOIN scheduler_attempt attempt ON attempt.id = allocation.attempt_id
    JOIN scheduler_job job ON job.number = attempt.job_id
    JOIN scheduler_node node ON node.id = allocation.node_id
WHERE allocation.released_at IS NULL AND attempt.state {_IS_LIVE} AND {OF_CLUSTER} AND node.cluster_id = %s
ORDER BY allocation.id
"""

#: What is bound in the NUMA domains of these nodes.
BOUND: Final = f"""
SELECT allocation.node_id, allocation.numa_domain, sum(allocation.cpu_millis)::bigint,
    sum(allocation.memory_mib)::bigint
FROM scheduler_allocation allocation
    JOIN scheduler_attempt attempt ON attempt.id = allocation.attempt_id
    JOIN scheduler_job job ON job.number = attempt.job_id
WHERE allocation.released_at IS NULL AND attempt.state {_IS_LIVE} AND job.numa = 'one'
    AND allocation.numa_domain IS NOT NULL AND allocation.node_id = ANY(%s::bigint[])
GROUP BY 1, 2
"""

NODES: Final = """
SELECT node.id, node.name, node.state, node.cordoned, node.draining, node.cpu_millis_capacity,
    node.memory_mib_capacity, node.storage_mib, node.used_cpu_millis, node.used_memory_mib,
    node.used_storage_mib, node.generation, node.labels::text, node.taints::text,
    ARRAY(SELECT partition_id FROM scheduler_node_partitions WHERE node_id = node.id ORDER BY 1),
    node.rack, node.zone, node.region,
    (SELECT CASE WHEN bool_and(partition.max_wall_seconds IS NOT NULL) THEN max(partition.max_wall_seconds) END
        FROM scheduler_node_partitions part JOIN scheduler_partition partition ON partition.id = part.partition_id
        WHERE part.node_id = node.id),
    node.cpu_millis, node.memory_mib, node.domains::text, node.numa_domains, node.extras::text
FROM scheduler_node node WHERE {which} ORDER BY node.id {lock}
"""

#: A device that its agent no longer reports is there as long as a job still holds it, as a sick one.
DEVICES: Final = """
SELECT device.id, device.node_id, device.index, device.numa_domain, device.model, device.memory_mib,
    device.healthy AND NOT device.gone, device.used_millis
FROM scheduler_device device
WHERE {which} AND device.kind = 'gpu' AND (NOT device.gone OR device.used_millis > 0)
ORDER BY device.id {lock}
"""

#: A hold for one job ends by itself once that job has its nodes.
RESERVATIONS: Final = f"""
SELECT reservation.id, reservation.name, {_ms("reservation.starts_at")}, {_ms("reservation.ends_at")},
    ARRAY(SELECT node_id FROM scheduler_reservation_nodes WHERE reservation_id = reservation.id ORDER BY 1),
    reservation.project_id, reservation.job_id
FROM scheduler_reservation reservation LEFT JOIN scheduler_job job ON job.number = reservation.job_id
WHERE reservation.cluster_id = %s AND reservation.cancelled_at IS NULL AND reservation.ends_at > statement_timestamp()
    AND (job.number IS NULL OR job.state IN ('created', 'held', 'blocked', 'queued', 'reserved', 'preempted'))
ORDER BY reservation.id
"""

#: Nodes that gangs gather, until they have them or their time is up; whoever is gone before may use them.
GATHERINGS: Final = f"""
SELECT -job.number, 'gathering for job ' || job.number,
    {_ms("least(greatest(job.expected_start_at, statement_timestamp()), job.assembly_until_at)")},
    {_ms("job.assembly_until_at")},
    ARRAY(SELECT node::bigint FROM jsonb_array_elements_text(job.assembly_node_ids) node ORDER BY 1),
    NULL::bigint, job.number
FROM scheduler_job job
WHERE {OF_CLUSTER} AND job.state = 'reserved' AND job.assembly_until_at > statement_timestamp()
ORDER BY job.number
"""

QUEUES: Final = """
SELECT queue.id, queue.name, queue.priority, queue.paused,
    concat(nullif('by ' || queue.paused_by, 'by '),
        to_char(queue.paused_at AT TIME ZONE 'UTC', '" since "YYYY-MM-DD"T"HH24:MI:SS"Z"'),
        nullif(': ' || queue.paused_reason, ': ')),
    coalesce(queue.max_concurrent_jobs, 0),
    CASE WHEN {counted} THEN
        (SELECT count(*) FROM scheduler_job job WHERE job.queue_id = queue.id AND job.state {active}) ELSE 0 END,
    ARRAY(SELECT partition_id FROM scheduler_queue_partitions WHERE queue_id = queue.id ORDER BY 1),
    coalesce(least(queue.max_wall_seconds, (
        SELECT CASE WHEN bool_and(partition.max_wall_seconds IS NOT NULL) THEN max(partition.max_wall_seconds) END
        FROM scheduler_queue_partitions part JOIN scheduler_partition partition ON partition.id = part.partition_id
        WHERE part.queue_id = queue.id
    )), 0), queue.generation,
    (SELECT count(*) FROM scheduler_attempt attempt JOIN scheduler_job job ON job.number = attempt.job_id
        WHERE attempt.stopped_for IS NOT NULL AND job.queue_id = queue.id
        AND attempt.stop_asked_at > statement_timestamp() - interval '1 hour')
    + (SELECT count(*) FROM scheduler_suspension suspension
        JOIN scheduler_attempt attempt ON attempt.id = suspension.attempt_id
        JOIN scheduler_job job ON job.number = attempt.job_id
        WHERE job.queue_id = queue.id AND suspension.asked_at > statement_timestamp() - interval '1 hour')
FROM scheduler_queue queue WHERE {which} ORDER BY queue.id {lock}
""".replace("{active}", _IS_ACTIVE)

_LOST: Final = """coalesce((SELECT sum(extract(epoch FROM attempt.stop_asked_at
            - greatest(coalesce(attempt.started_at, attempt.scheduled_at),
                CASE WHEN job.saved_at < attempt.stop_asked_at THEN job.saved_at END))
            * (SELECT count(*) FROM scheduler_task task WHERE task.attempt_id = attempt.id)
            * CASE WHEN job.gpu_millis > 0 THEN job.gpu_millis ELSE job.gpus * 1000 END / 1000)
        FROM scheduler_attempt attempt JOIN scheduler_job job ON job.number = attempt.job_id
        WHERE attempt.stopped_for IS NOT NULL AND job.project_id = project.id
        AND attempt.stop_asked_at > statement_timestamp() - interval '1 day'), 0)::bigint"""
_PROJECTS: Final = """
SELECT project.id, project.slug, project.share_weight,
    {lost},
    project.organization_id
FROM accounts_project project WHERE project.id = ANY(%s::bigint[]) ORDER BY project.id
"""
PROJECTS: Final = _PROJECTS.format(lost=_LOST)
#: Without what each lost to others, which decides who goes first and no more.
PROJECTS_APPLIED: Final = _PROJECTS.format(lost="0")

#: Projects whose quota is kept by somebody who is away; none where jobs run meanwhile.
AWAY: Final = """
SELECT project_id, provider, status, text FROM quotas_providerstate
WHERE %s AND project_id = ANY(%s::bigint[]) AND (status = 'refused'
    OR (status = 'unreachable' AND since <= statement_timestamp() - make_interval(secs => %s)))
"""

#: Whether all open projects stand side by side, their members with equal weight; and whether any share has a limit.
SHARE_SHAPE: Final = """
SELECT (SELECT min(organization_id) FROM accounts_project WHERE active)
            IS NOT DISTINCT FROM (SELECT max(organization_id) FROM accounts_project WHERE active)
        AND NOT EXISTS (SELECT FROM accounts_membership WHERE share_weight <> 1),
    EXISTS (SELECT FROM accounts_project WHERE share_soft_percent IS NOT NULL OR share_hard_percent IS NOT NULL)
        OR EXISTS (SELECT FROM accounts_organization
            WHERE share_soft_percent IS NOT NULL OR share_hard_percent IS NOT NULL)
"""

#: The organizations that the projects are in, up to the root, and those of lines that keep something back.
_UP: Final = """
WITH RECURSIVE up(id, parent_id) AS (
    SELECT organization.id, organization.parent_id FROM accounts_organization organization
    WHERE organization.id IN (SELECT organization_id FROM accounts_project WHERE id = {projects})
    UNION SELECT organization.id, organization.parent_id
    FROM up JOIN accounts_organization organization ON organization.id = up.parent_id
)
"""
_KEEPERS_UP: Final = """
WITH RECURSIVE up(id, parent_id) AS (
    SELECT organization.id, organization.parent_id FROM accounts_organization organization
    WHERE organization.id IN (
        SELECT coalesce(quota.organization_id, project.organization_id)
        FROM quotas_quota quota LEFT JOIN accounts_project project ON project.id = quota.project_id
        WHERE quota.lending_limit IS NOT NULL AND quota.enforce
    )
    UNION SELECT organization.id, organization.parent_id
    FROM up JOIN accounts_organization organization ON organization.id = up.parent_id
)
"""
ORGANIZATIONS: Final = _UP + "SELECT id, parent_id FROM up"
KEEPERS_ORGANIZATIONS: Final = _KEEPERS_UP + "SELECT id, parent_id FROM up"

_LINE: Final = f"""
SELECT quota.id, quota.organization_id, quota.project_id, quota.user_id, project.organization_id,
    CASE WHEN quota.organization_id IS NOT NULL THEN 'organization ' || organization.slug
        WHEN quota.project_id IS NULL THEN 'user ' || person.username
        ELSE coalesce(person.username || ' in ', '') || 'project ' || project.slug END,
    quota.resource, quota.gpu_model, quota.job_type,
    CASE WHEN quota.job_type = '' THEN 0 ELSE {_number_of_type("quota.job_type")} END,
    quota.hard, quota.nominal, quota.borrowing_limit, quota.lending_limit, quota.used, quota.enforce,
    quota.generation, coalesce({_ms("quota.over_since")} + 1000 * quota.converge_after_seconds::bigint, 0)
FROM quotas_quota quota LEFT JOIN accounts_project project ON project.id = quota.project_id
    LEFT JOIN accounts_organization organization ON organization.id = quota.organization_id
    LEFT JOIN accounts_user person ON person.id = quota.user_id
"""
#: Every line that jobs of these people in these projects count on.
LINES: Final = (
    _UP
    + _LINE
    + """
WHERE (quota.project_id = {projects} AND (quota.user_id IS NULL OR quota.user_id = {users})
        OR quota.organization_id IN (SELECT id FROM up)
        OR quota.project_id IS NULL AND quota.user_id = {users})
    AND quota.resource <> 'pending_jobs' {bounded}
ORDER BY quota.id {lock}
"""
)
BOUNDED: Final = "AND (quota.hard IS NOT NULL OR quota.nominal IS NOT NULL)"
ANY_OF: Final = "ANY(%s::bigint[])"
#: Lines of others that keep something back of the ones above them, and those above: idle or not, it is theirs.
KEEPERS: Final = (
    _KEEPERS_UP
    + _LINE
    + """
WHERE (quota.lending_limit IS NOT NULL AND quota.enforce OR quota.organization_id IN (SELECT id FROM up))
    AND quota.resource <> 'pending_jobs' AND (quota.hard IS NOT NULL OR quota.nominal IS NOT NULL)
ORDER BY quota.id
"""
)


#: From each project up to the root organization; nothing where there is no budget at all.
_PATH: Final = """
WITH RECURSIVE path(project_id, organization_id) AS (
    SELECT project.id, project.organization_id FROM accounts_project project
    WHERE project.id = {projects} AND EXISTS (SELECT 1 FROM quotas_budget)
    UNION
    SELECT path.project_id, organization.parent_id FROM path
        JOIN accounts_organization organization ON organization.id = path.organization_id
    WHERE organization.parent_id IS NOT NULL
)"""
_THESE_PROJECTS: Final = _PATH.format(projects="ANY(%s::bigint[])")

#: The budgets that each project counts on, unless they ended before.
BUDGETS: Final = f"""{_THESE_PROJECTS}
SELECT DISTINCT path.project_id, budget.id, budget.resource, budget.period,
    floor(extract(epoch FROM budget.starts_at))::bigint, floor(extract(epoch FROM budget.ends_at))::bigint
FROM quotas_budget budget JOIN path
    ON budget.project_id = path.project_id OR budget.organization_id = path.organization_id
WHERE budget.ends_at IS NULL OR budget.ends_at > %s
ORDER BY 1, 2
"""

#: Their periods that are not over; locked by whoever is going to move them.
PERIODS: Final = f"""{_THESE_PROJECTS}
SELECT period.id, period.budget_id, floor(extract(epoch FROM period.starts_at))::bigint,
    budget.name || ' of ' || coalesce('project ' || project.slug, organization.name),
    budget.resource, period.amount, period.held + period.charged,
    floor(extract(epoch FROM period.starts_at))::bigint * 1000,
    floor(extract(epoch FROM period.ends_at))::bigint * 1000, budget.on_spent,
    ARRAY(SELECT DISTINCT path.project_id FROM path WHERE budget.project_id = path.project_id
        OR budget.organization_id = path.organization_id ORDER BY 1)
FROM quotas_budgetperiod period JOIN quotas_budget budget ON budget.id = period.budget_id
    LEFT JOIN accounts_project project ON project.id = budget.project_id
    LEFT JOIN accounts_organization organization ON organization.id = budget.organization_id
WHERE period.ends_at > statement_timestamp() AND period.budget_id IN (
    SELECT budget.id FROM quotas_budget budget JOIN path
        ON budget.project_id = path.project_id OR budget.organization_id = path.organization_id)
ORDER BY period.id {{lock}}
"""
#: And those that these attempts have been running in.
PERIODS_OF_ATTEMPTS: Final = f"""{
    _PATH.format(
        projects='''ANY(SELECT job.project_id FROM scheduler_attempt attempt
        JOIN scheduler_job job ON job.number = attempt.job_id WHERE attempt.id = ANY(%s::bigint[]))'''
    )
}
SELECT period.id FROM quotas_budgetperiod period
WHERE period.ends_at > (SELECT min(scheduled_at) FROM scheduler_attempt WHERE id = ANY(%s::bigint[]))
    AND period.budget_id IN (SELECT budget.id FROM quotas_budget budget JOIN path
        ON budget.project_id = path.project_id OR budget.organization_id = path.organization_id)
ORDER BY period.id FOR NO KEY UPDATE
"""

PRICES: Final = """
SELECT resource, micros_per_hour, floor(extract(epoch FROM valid_from))::bigint,
    floor(extract(epoch FROM valid_until))::bigint, gpu_model
FROM quotas_pricerow ORDER BY id
"""

ENTRIES: Final = """
SELECT attempt_id, kind, gpu_model, cpu_millis, memory_mib, gpu_millis, storage_mib,
    floor(extract(epoch FROM starts_at))::bigint, floor(extract(epoch FROM ends_at))::bigint,
    held_seconds, charged_seconds, held_micros, charged_micros
FROM quotas_ledgerentry
WHERE job_number = ANY(%s::bigint[]) AND attempt_id = ANY(%s::bigint[]) AND kind <> 'adjust' ORDER BY id
"""

HELD_WITH_MODELS: Final = """
SELECT allocation.attempt_id, allocation.held_at, coalesce(job.time_limit_seconds, queue.max_wall_seconds, 0),
    ARRAY(SELECT device.model FROM unnest(allocation.device_ids) WITH ORDINALITY AS held(id, place)
        JOIN scheduler_device device ON device.id = held.id ORDER BY held.place),
    allocation.cpu_millis + allocation.suspended_cpu_millis, allocation.memory_mib, allocation.gpu_millis,
    allocation.storage_mib
FROM scheduler_allocation allocation JOIN scheduler_attempt attempt ON attempt.id = allocation.attempt_id
    JOIN scheduler_job job ON job.number = attempt.job_id JOIN scheduler_queue queue ON queue.id = job.queue_id
WHERE allocation.attempt_id = ANY(%s::bigint[]) ORDER BY allocation.attempt_id, allocation.rank
"""

#: When what these attempts held stood still, and the CPUs that were given back then; what a task held that ended
#: meanwhile, only until its end.
STOOD_STILL: Final = """
SELECT attempt_id, sum(cpu_millis)::bigint, from_s, until_s FROM (
    SELECT held.attempt_id, held.cpu_millis + held.suspended_cpu_millis AS cpu_millis,
        floor(extract(epoch FROM greatest(still.starts_at, held.held_at)))::bigint AS from_s,
        floor(extract(epoch FROM least(coalesce(still.ends_at, %s), held.released_at)))::bigint AS until_s
    FROM scheduler_suspension still JOIN scheduler_allocation held ON held.attempt_id = still.attempt_id
    WHERE still.attempt_id = ANY(%s::bigint[]) AND still.starts_at IS NOT NULL
) each WHERE from_s < until_s GROUP BY attempt_id, from_s, until_s ORDER BY attempt_id, from_s, until_s
"""

#: What tasks of these attempts held that had given it back before a moment.
RELEASED_EARLY: Final = """
SELECT held.attempt_id, held.cpu_millis + held.suspended_cpu_millis, held.memory_mib, held.gpu_millis,
    held.storage_mib,
    coalesce((SELECT device.model FROM scheduler_device device WHERE device.id = held.device_ids[1]), ''),
    floor(extract(epoch FROM held.released_at))::bigint
FROM scheduler_allocation held
WHERE held.attempt_id = ANY(%s::bigint[]) AND held.released_at < %s
ORDER BY held.attempt_id, held.rank
"""
