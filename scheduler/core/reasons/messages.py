"""Messages: a decision and its numbers as a plain sentence, for the person who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from quotas.core.resources import show_cpus, show_mib
from scheduler.core.plan import Fact
from scheduler.core.reason_codes import ReasonCode
from scheduler.core.reasons.closed_words import closed_beside, nodes_unavailable

Facts = Mapping[str, int | str]

#: What each gate says about the nodes it turned away.
GATE_WORDS: Final[Mapping[str, str]] = {
    "state": "are not responding",
    "fault": "report a fault and take no tasks",
    "cordoned": "are cordoned",
    "draining": "are draining",
    "partition": "are outside the job's partitions",
    "wall": "are in partitions with a shorter time limit",
    "labels": "lack a required label",
    "isolation": "isolate jobs too little for the queue",
    "agent": "run an agent older than the job needs",
    "taints": "have an untolerated taint",
    "affinity": "do not match the node affinity",
    "reserved": "are reserved for others",
    "jobs": "are excluded by affinity to other jobs",
    "gpu_model": "lack a GPU of the requested model",
    "gpu_health": "have too few healthy GPUs",
    "size": "are too small for one task",
    "gpus": "have too few free GPUs",
    "cpu_millis": "have too few free CPUs",
    "memory_mib": "have too little free memory",
    "storage_mib": "have too little free storage",
    "numa": "lack a NUMA domain with enough free resources for one task",
}


def sentence(
    reason: ReasonCode, facts: Iterable[Fact] | Facts, *, ahead_jobs: int = 0, ahead_gpus: int = 0
) -> str:
    """Say why a job waits, from the facts of its decision.

    A time is written as RFC 3339 in UTC, a value that the page or client shows in the viewer's zone.
    """
    known = dict(facts)
    text = _SENTENCES[reason](known)
    text += closed_beside(known)
    if known.get("search_ended"):
        text += " The search for jobs to preempt reached its bound in this cycle before it had tried all."
    if known.get("pressure_percent") and reason is not ReasonCode.PRIORITY:
        text += _pressure(reason, known)
    if ahead_jobs:
        gpus = f" ({ahead_gpus:,} {_plural('GPU', ahead_gpus)})" if ahead_gpus else ""
        verb = "is" if ahead_jobs == 1 else "are"
        text += f" {ahead_jobs:,} {_plural('job', ahead_jobs)}{gpus} {verb} ahead."
    return text


def _pressure(reason: ReasonCode, facts: Facts) -> str:
    """From which allocation on others are stopped for a job, and what is allocated."""
    least, now = _number(facts, "pressure_percent"), _number(facts, "allocated_percent")
    if reason is ReasonCode.WAITING_FOR_PREEMPTION:
        return f" Of the nodes that it may use {now} % is allocated; jobs are preempted for it from {least} % on."
    return f" No job is preempted for it: of the nodes that it may use {now} % is allocated, of {least} % required."


def amount(resource: str, count: int) -> str:
    """`amount("memory_mib", 2048)` -> `2 GiB`; `amount("gpus", 4)` -> `4 GPUs`."""
    if resource == "cpu_millis":
        return f"{show_cpus(count)} {'CPU' if count == 1000 else 'CPUs'}"
    if resource == "memory_mib":
        return f"{show_mib(count)} of memory"
    if resource == "storage_mib":
        return f"{show_mib(count)} of storage"
    if resource == "gpus":
        return f"{count:,} {_plural('GPU', count)}"
    if resource == "gpu_millis":
        return f"{show_cpus(count)} {'GPU' if count == 1000 else 'GPUs'}"
    if resource == "running_jobs":
        return f"{count:,} running {_plural('job', count)}"
    if resource in {"tasks", "nodes"}:
        return f"{count:,} {_plural(resource[:-1], count)}"
    return f"{count:,} {resource}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"


def _number(facts: Facts, name: str) -> int:
    value = facts.get(name, 0)
    return value if isinstance(value, int) else 0


def _text(facts: Facts, name: str, otherwise: str = "") -> str:
    return str(facts.get(name) or otherwise)


def _amount(facts: Facts, name: str) -> str:
    resource, count = _text(facts, "resource"), _number(facts, name)
    if resource in {"memory_mib", "storage_mib"} and _needs_every_mib(facts):
        return f"{count:,} MiB of {resource.removesuffix('_mib')}"
    text, model = amount(resource, count), _text(facts, "gpu_model")
    return text.replace("GPU", f"{model} GPU") if model else text


def _time(facts: Facts, name: str) -> str:
    return datetime.fromtimestamp(_number(facts, name) / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _duration(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


def _invalid_spec(facts: Facts) -> str:
    needs, total = _amount(facts, "needs"), _number_of(facts, "total")
    kind = _text(facts, "kind")
    if kind == "numa":
        why = _across_domains(facts)
    elif kind == "shape":
        tasks, nodes = amount("tasks", _number(facts, "tasks")), amount("nodes", _number(facts, "nodes"))
        each = _number(facts, "tasks_per_node")
        why = f"Requests {tasks} on {nodes}{f' with {each:,} on each' if each else ''}, which is impossible."
    elif kind in {"rack", "zone"} or (kind == "node" and _text(facts, "resource") == "tasks"):
        near, most = "on one node" if kind == "node" else f"in one {kind}", _number_of(facts, "largest")
        why = f"Requests {needs} {near}; the largest {kind}, idle, holds {most}."
    elif kind == "node":
        why = f"Requests {needs} on one node; the largest node has {_number_of(facts, 'largest')}."
    elif kind == "spread":
        why = f"{_spread_words(facts)}; the matching nodes are in {_domains(facts, 'domains')}."
    elif _text(facts, "resource") == "tasks":
        why = _too_many_tasks(facts)
    else:
        why = f"Requests {needs} in all; the matching nodes have {total}."
    if kind in {"rack", "zone", "spread"}:
        return why  # an operator says which rack a node is in
    return f"{why} The job can never start as written."


def _too_many_tasks(facts: Facts) -> str:
    """What a number of nodes, or of tasks on each, leaves no room for is not measured in tasks alone."""
    needs, nodes, each = (_number(facts, name) for name in ("needs", "nodes_wanted", "tasks_per_node"))
    layout = f" on {amount('nodes', nodes)}" if nodes else ""
    layout += f" with {each:,} on each{'' if nodes else ' node'}" if each else ""
    if _number(facts, "total") < needs:
        held = f"hold {_number_of(facts, 'total')}"
    else:
        held = "cannot hold that layout"
    return f"Requests {amount('tasks', needs)}{layout} at once; all matching nodes, idle, {held}."


def _across_domains(facts: Facts) -> str:
    most = [amount("cpu_millis", _number(facts, "largest_cpu_millis")),
            amount("memory_mib", _number(facts, "largest_memory_mib"))]  # fmt: skip
    most += [amount("gpus", _number(facts, "largest_gpus"))] if _number(facts, "gpus") else []
    if not (_number(facts, "largest_cpu_millis") or _number(facts, "largest_memory_mib")):
        return "Requests one NUMA domain; no matching node reports the size of its domains."
    if _number(facts, "total"):
        return (
            f"Requests {_amount(facts, 'needs')} at once, each in one NUMA domain; all matching nodes, idle, "
            f"hold {_number_of(facts, 'total')}."
        )
    return (
        f"Requests one NUMA domain{' per task' if _number(facts, 'needs') > 1 else ''}; on the matching nodes "
        f"no domain has more than {', '.join(most[:-1])} and {most[-1]}."
    )


def _number_of(facts: Facts, name: str) -> str:
    """An amount without its noun where the noun was just said."""
    resource, count = _text(facts, "resource"), _number(facts, name)
    if resource in {"cpu_millis", "gpu_millis"}:
        return show_cpus(count)
    if resource in {"memory_mib", "storage_mib"}:
        return f"{count:,} MiB" if _needs_every_mib(facts) else show_mib(count)
    return f"{count:,}"


def _needs_every_mib(facts: Facts) -> bool:
    """Whether "needs 16 GiB, the largest has 16 GiB" would be said of two amounts that differ."""
    needs = _number(facts, "needs")
    others = [_number(facts, name) for name in ("largest", "total", "free", "limit") if name in facts]
    return any(other != needs and show_mib(other) == show_mib(needs) for other in others)


def _no_matching_node(facts: Facts) -> str:
    gate, wanted = _text(facts, "gate"), _text(facts, "wanted")
    if gate == "none":
        return "The cluster has no nodes."
    if gate == "combination":
        return "No single node has all that one task requests. The job can never start as written."
    named = f" ({wanted})" if wanted else ""
    words = GATE_WORDS.get(gate, f"are excluded by {gate}")
    return f"No matching node: all {words}{named}. The job can never start as written."


def _exceeds_max_quota(facts: Facts) -> str:
    return (
        f"Needs {_amount(facts, 'needs')}; the limit of {_text(facts, 'owner', 'its project')} is "
        f"{_number_of(facts, 'limit')}. Request less, or request a higher limit."
    )


def _exceeds_max_walltime(facts: Facts) -> str:
    return (
        f"Requests {_duration(_number(facts, 'needs'))}; queue {_text(facts, 'queue')} allows "
        f"{_duration(_number(facts, 'limit'))}. Shorten the time limit, or choose another queue."
    )


def _queue_stopped(facts: Facts) -> str:
    text = _text(facts, "text")
    return f"Queue {_text(facts, 'queue')} is paused{' ' + text if text else ''}."


def budget_amount(facts: Facts, name: str) -> str:
    """`8 GPU-hours`, `3.5 core-hours`, `12.50` (of money)."""
    count, resource = _number(facts, name), _text(facts, "resource")
    if resource == "money_micros":
        return f"{count / 1_000_000:,.2f}"
    noun = "GPU-hours" if resource == "gpu_milli_seconds" else "core-hours"
    hours = count / 3_600_000
    text = f"{hours:,.0f}" if hours >= 100 or hours == int(hours) else f"{hours:,.2f}".rstrip("0").rstrip(".")
    return f"{text or '0'} {noun}"


def _budget_spent(facts: Facts) -> str:
    return (
        f"Needs {budget_amount(facts, 'needs')} of the budget {_text(facts, 'budget')}; "
        f"{budget_amount(facts, 'left')} of {budget_amount(facts, 'limit')} are left until "
        f"{_time(facts, 'ends_ms')}. A shorter time limit needs less of the budget."
    )


def _exceeds_budget(facts: Facts) -> str:
    return (
        f"Needs {budget_amount(facts, 'needs')}; the budget {_text(facts, 'budget')} has "
        f"{budget_amount(facts, 'limit')} in all. Request less time, or a larger budget."
    )


def _quota_zero(facts: Facts) -> str:
    resource = {"gpu_millis": "GPU", "gpus": "GPU", "cpu_millis": "CPU", "memory_mib": "memory",
                "storage_mib": "storage"}.get(_text(facts, "resource"), _text(facts, "resource"))  # fmt: skip
    owner = _text(facts, "owner", "its project")
    return f"The {resource} limit of {owner} is 0. Ask a project lead or an administrator."


def _rate_limited(facts: Facts) -> str:
    running, limit = _number(facts, "running"), _number(facts, "limit")
    if _text(facts, "scope") == "array":
        return f"Array limit reached: {running:,} of {limit:,} running."
    return f"Queue {_text(facts, 'queue')} runs {running:,} of {limit:,} allowed jobs."


def _waiting_for_quota(facts: Facts) -> str:
    owner = _text(facts, "owner", "its project")
    used, limit = _number_of(facts, "used"), _number_of(facts, "limit")
    if _number(facts, "elsewhere"):
        return (
            f"Needs GPUs of another model: {_number_of(facts, 'needs')} {_text(facts, 'gpu_model')} requested, "
            f"but the limit of {owner} is {limit}."
        )
    text = f"Needs {_amount(facts, 'needs')}; {owner} uses {used} of {limit}"
    if "kept" in facts:
        text += f"; {_number_of(facts, 'kept')} more are reserved below that limit and not lent"
    if "own" in facts:
        text += f"; {_text(facts, 'own')} uses {_number_of(facts, 'own_used')}"
        if "own_nominal" in facts:
            text += f" of nominal {_number_of(facts, 'own_nominal')}"
            text += f" and may borrow {_number_of(facts, 'may_borrow')} more"
    return f"{text}."


def _named_reservation(facts: Facts) -> str:
    """Why a job cannot run in the reservation that it names."""
    named, quoted = _text(facts, "named"), f"Reservation “{_text(facts, 'reservation')}”"
    if named == "begins":
        return f"{quoted} begins at {_time(facts, 'starts_ms')}."
    if named == "short":
        return f"{quoted} ends at {_time(facts, 'ends_ms')}, before the job would be over by its time limit."
    if named == "others":
        return f"{quoted} is not for the project or the owner of this job."
    return "The reservation that the job names is over or cancelled. Change or clear its reservation."


def _reservation(facts: Facts) -> str:
    if "named" in facts:
        return _named_reservation(facts)
    count = _number(facts, "reserved_nodes")
    name = _text(facts, "reservation")
    quoted = f" “{name}”" if name else ""
    window = f"from {_time(facts, 'starts_ms')} to {_time(facts, 'ends_ms')}"
    if "in_part" in facts:
        where = f"Part of node {_text(facts, 'node')} is" if count == 1 else f"Parts of {count:,} nodes are"
        return f"{where} reserved{quoted} {window}; the rest has too little free for this job."
    return (
        f"The matching {_plural('node', count)} ({count:,}) {'is' if count == 1 else 'are'} reserved"
        f"{quoted} from {_time(facts, 'starts_ms')} to {_time(facts, 'ends_ms')}."
    )


def _domains(facts: Facts, name: str) -> str:
    count = _number(facts, name)
    return f"{count:,} {_plural(_text(facts, 'topology'), count)}"


def _spread_words(facts: Facts) -> str:
    """`Requests exactly 2 regions`."""
    least, most, each = _number(facts, "least"), _number(facts, "most"), _number(facts, "per_domain")
    topology = _text(facts, "topology")
    if least == most:
        how = f"Requests exactly {_domains(facts, 'least')}" if most > 1 else f"Requests one {topology}"
    elif most:
        how = f"Requests {least:,} to {_domains(facts, 'most')}"
    elif least > 1:
        how = f"Requests at least {_domains(facts, 'least')}"
    else:
        how = "Requests a spread of tasks"
    return f"{how}, with at most {amount('tasks', each)} in each {topology}" if each else how


def _job_affinity(facts: Facts) -> str:
    kind, topology, jobs = _text(facts, "kind"), _text(facts, "topology"), _text(facts, "jobs")
    if kind == "spread":
        return f"{_spread_words(facts)}; {_domains(facts, 'domains')} with enough free resources now."
    tasks, open_, left = (_number(facts, name) for name in ("tasks", "open", "left"))
    of = f"{open_:,} of {amount('nodes', _number(facts, 'room'))} with enough free resources"
    if kind == "near" and not tasks:
        text = f"Must run in the same {topology} as a job {jobs}; no such job is running"
    elif kind == "near":
        text = f"Must run in the same {topology} as a job {jobs}; this leaves {of}"
    elif kind == "apart":
        text = f"Must not run in the same {topology} as a job {jobs}; this leaves {of}"
    else:
        text = f"Running jobs exclude jobs {jobs} from their {topology}; this leaves {of}"
    return text + (f"; other affinity rules leave {left:,}." if left < open_ else ".")


def _crosses(facts: Facts) -> str:
    tasks, node, others = _number(facts, "needs"), _text(facts, "node"), _number(facts, "nodes") - 1
    across = f"{node} only across {_number(facts, 'domains') or 'several'} NUMA domains"
    more = (
        f", as {'does' if others == 1 else 'do'} {others:,} more {_plural('node', others)}"
        if others > 0
        else ""
    )
    if tasks == 1:
        return f"Needs one NUMA domain; fits {across}{more}."
    return (
        f"Needs each of {amount('tasks', tasks)} in one NUMA domain; "
        f"{_number_of(facts, 'free')} fit now, and more fit {across}{more}."
    )


def _topology_fragmented(facts: Facts) -> str:
    if "numa" in facts:
        return _crosses(facts)
    if "pack" in facts:
        where, most = _text(facts, "pack"), _number_of(facts, "largest")
        near = "on one node" if where == "node" else f"in one {where}"
        return (
            f"Needs {_amount(facts, 'needs')} {near}; {_number_of(facts, 'free')} fit now, "
            f"but at most {most} {near}.{' ' + nodes_unavailable(facts) if 'gates' in facts else ''}"
        )
    per_task, needs = _number(facts, "per_task"), _number(facts, "needs")
    each = f", {_number_of(facts, 'per_task')} on one node" if per_task != needs else " on one node"
    return (
        f"Needs {_amount(facts, 'needs')}{each}; {_number_of(facts, 'free')} are free, but fragmented: "
        f"the most on one node is {_number_of(facts, 'largest')}."
    )


def _backoff(facts: Facts) -> str:
    begin = _time(facts, "begin_ms")
    if "gathered_until_ms" in facts:
        return (
            f"Node assembly timed out at {_time(facts, 'gathered_until_ms')}: not all nodes became free. "
            f"Next attempt at {begin} or later."
        )
    return f"The last attempt failed; the next attempt is at {begin} or later."


def _waiting_for_resources(facts: Facts) -> str:
    if "gates" in facts:
        return nodes_unavailable(facts)
    if "gathering" in facts:
        nodes = _number(facts, "gathering")
        late = (
            f" By the time limits of running jobs all are free at {_time(facts, 'by_limits_ms')}, after that: the job "
            "starts only if some end before their limits."
            if "by_limits_ms" in facts
            else ""
        )
        return (
            f"Reserving {nodes:,} {_plural('node', nodes)} until {_time(facts, 'until_ms')}: "
            f"{_number_of(facts, 'free')} of {_amount(facts, 'needs')} fit so far; "
            f"more are reserved as they become free.{late}"
        )
    text = (
        f"Needs {_amount(facts, 'needs')}; {_number_of(facts, 'free')} of {_number_of(facts, 'total')} free"
    )
    if "ending" in facts:
        more, by = _number_of(facts, "ending"), _time(facts, "ending_by_ms")
        text += f", {more} more by {by} at the latest"
    return text + "."


def _priority(facts: Facts) -> str:
    if "job" not in facts:
        return f"Fits now, but queue {_text(facts, 'queue')} starts jobs strictly in order."
    job, barred = _number(facts, "job"), _text(facts, "barred")
    if barred in {"quota", "budget"} and "start_ms" in facts:
        return (
            f"Fits now, but job {job} ahead waits for the same {barred}, and this job could still be running at "
            f"{_time(facts, 'start_ms')}, when job {job} can have it. A shorter time limit may allow backfill."
        )
    if barred == "budget":
        return f"Fits now, but the remaining budget is reserved for job {job} ahead."
    if barred == "scan":
        return f"Fits now, but job {job} is ahead, and each cycle tries a limited number of jobs behind it."
    if barred == "priority":
        return f"Fits now, but job {job} is ahead, and jobs of this priority are not backfilled."
    if "start_ms" not in facts:
        return f"Fits now, but job {job} is ahead."
    return (
        f"Fits now, but could still be running at {_time(facts, 'start_ms')}, when job "
        f"{job} ahead is expected to start there. A shorter time limit may allow backfill."
    )


def _waiting_for_preemption(facts: Facts) -> str:
    count = _number(facts, "jobs")
    if not count:
        return "Other jobs are being preempted for this job."
    who = _named(count, _text(facts, "numbers"))
    jobs, is_, has, release = (
        ("Job", "is", "has", "releases") if count == 1 else (f"{count:,} jobs:", "are", "have", "release")
    )
    beside = _also_release(facts)
    if _number(facts, "smaller"):
        until = _time(facts, "stop_by_ms")
        return f"{jobs} {who} {release} tasks for this job and {has} until {until} to end them."
    if _number(facts, "suspended"):
        return f"{jobs} {who} {is_} being suspended for this job.{beside}"
    until = _time(facts, "stop_by_ms")
    return f"{jobs} {who} {is_} being stopped for this job and {has} until {until} to end.{beside}"


def _named(count: int, numbers: str) -> str:
    """The first jobs by number, and how many more there are."""
    more = count - len(numbers.split(", "))
    return f"{numbers} and {more:,} more" if more > 0 else numbers


def _also_release(facts: Facts) -> str:
    """The elastic jobs that release tasks beside the victims, as a sentence; empty where there are none."""
    givers = _number(facts, "givers")
    if not givers:
        return ""
    jobs, release = ("Job", "releases") if givers == 1 else ("Jobs", "release")
    return f" {jobs} {_named(givers, _text(facts, 'giver_numbers'))} also {release} tasks."


def _fair_share_behind(facts: Facts) -> str:
    if not _number(facts, "limit_percent"):
        return "Projects with less usage go first."
    owner = _text(facts, "owner", "its project")
    return (
        f"{owner[:1].upper()}{owner[1:]} recently used {_number(facts, 'used_percent')} % of the site; the "
        f"limit is {_number(facts, 'limit_percent')} %. Jobs start again as this usage decays."
    )


def _agent_unreachable(facts: Facts) -> str:
    count = _number(facts, "unreachable")
    if count == 1 and facts.get("node"):
        return f"The only matching node ({facts['node']}) does not respond."
    return f"None of the matching nodes ({count:,}) responds."


_SENTENCES: Final[Mapping[ReasonCode, Callable[[Facts], str]]] = {
    ReasonCode.INVALID_SPEC: _invalid_spec,
    ReasonCode.NO_MATCHING_NODE: _no_matching_node,
    ReasonCode.EXCEEDS_MAX_QUOTA: _exceeds_max_quota,
    ReasonCode.EXCEEDS_MAX_WALLTIME: _exceeds_max_walltime,
    ReasonCode.DEPENDENCY_NEVER_SATISFIED: lambda _: (
        "A dependency finished with the wrong result. Cancel the job, or change its dependencies."
    ),
    ReasonCode.IMAGE_NOT_FOUND: lambda _: "The image does not exist.",
    ReasonCode.QUEUE_STOPPED: _queue_stopped,
    ReasonCode.HELD_BY_ADMIN: lambda _: "Held by an operator until released.",
    ReasonCode.HELD_BY_USER: lambda _: "Held by the owner until released.",
    ReasonCode.ACCOUNT_EXPIRED: lambda _: "The account or project is closed.",
    ReasonCode.QUOTA_ZERO: _quota_zero,
    ReasonCode.BUDGET_SPENT: _budget_spent,
    ReasonCode.EXCEEDS_BUDGET: _exceeds_budget,
    ReasonCode.QUOTA_PROVIDER_AWAY: lambda facts: _text(facts, "text", "The quota provider is unreachable."),
    ReasonCode.QUOTA_PROVIDER_REFUSES: lambda facts: _text(
        facts, "text", "The quota provider refuses the start."
    ),
    ReasonCode.APPROVAL_PENDING: lambda _: "Needs approval.",
    ReasonCode.NODES_UNAVAILABLE: nodes_unavailable,
    ReasonCode.BEGIN_TIME: lambda facts: f"Begins at {_time(facts, 'begin_ms')} or later, as requested.",
    ReasonCode.DEPENDENCY: lambda _: "Depends on other jobs.",
    ReasonCode.BACKOFF: _backoff,
    ReasonCode.RATE_LIMITED: _rate_limited,
    ReasonCode.WAITING_FOR_QUOTA: _waiting_for_quota,
    ReasonCode.FAIR_SHARE_BEHIND: _fair_share_behind,
    ReasonCode.WAITING_FOR_PREEMPTION: _waiting_for_preemption,
    ReasonCode.RESERVATION: _reservation,
    ReasonCode.JOB_AFFINITY: _job_affinity,
    ReasonCode.TOPOLOGY_FRAGMENTED: _topology_fragmented,
    ReasonCode.WAITING_FOR_RESOURCES: _waiting_for_resources,
    ReasonCode.PRIORITY: _priority,
    ReasonCode.NOT_EVALUATED_YET: lambda _: "Not evaluated yet. The next cycle follows within seconds.",
    ReasonCode.SCHEDULER_BEHIND: lambda _: "The scheduler is behind.",
    ReasonCode.AGENT_UNREACHABLE: _agent_unreachable,
    ReasonCode.DATA_STALE: lambda _: "The cluster data are too old to schedule on.",
}
