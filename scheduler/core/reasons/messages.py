"""Messages: a decision and its numbers as a plain sentence, for the person who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from quotas.core.resources import show_cpus, show_mib
from scheduler.core.plan import Fact
from scheduler.core.reason_codes import ReasonCode

Facts = Mapping[str, int | str]

#: What each gate says about the nodes it turned away.
GATE_WORDS: Final[Mapping[str, str]] = {
    "state": "do not answer",
    "cordoned": "are cordoned",
    "draining": "are draining",
    "partition": "are not in its partitions",
    "wall": "are in partitions that allow less time than it asks for",
    "labels": "lack a label it asks for",
    "taints": "have a taint it does not tolerate",
    "affinity": "do not meet its affinity",
    "reserved": "are reserved for others",
    "jobs": "are not where its rules about other jobs let it be",
    "gpu_model": "have no GPU of the kind it asks for",
    "gpu_health": "have too few healthy GPUs",
    "size": "have fewer cores or less memory than one task of it asks for",
    "gpus": "have too few free GPUs",
    "cpu_millis": "have too few free CPUs",
    "memory_mib": "have too little free memory",
    "storage_mib": "have too little free storage",
    "numa": "have no NUMA domain with room for all of one task",
}


def sentence(
    reason: ReasonCode, facts: Iterable[Fact] | Facts, *, ahead_jobs: int = 0, ahead_gpus: int = 0
) -> str:
    """Say why a job waits, from the facts of its decision. Times are UTC."""
    known = dict(facts)
    text = _SENTENCES[reason](known)
    if ahead_jobs:
        gpus = f" ({ahead_gpus:,} {_plural('GPU', ahead_gpus)})" if ahead_gpus else ""
        verb = "is" if ahead_jobs == 1 else "are"
        text += f" {ahead_jobs:,} {_plural('job', ahead_jobs)}{gpus} {verb} ahead of it."
    return text


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
    return datetime.fromtimestamp(_number(facts, name) / 1000, tz=UTC).strftime("%d %b %H:%M UTC").lstrip("0")


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
        why = f"Asks for {tasks} on {nodes}{f' with {each:,} on each' if each else ''}, which cannot be."
    elif kind in {"rack", "zone"} or (kind == "node" and _text(facts, "resource") == "tasks"):
        near, most = "on one node" if kind == "node" else f"in one {kind}", _number_of(facts, "largest")
        why = f"Asks for {needs} {near}; the largest {kind}, idle, holds {most}."
    elif kind == "node":
        why = f"Asks for {needs} on one node; the largest node has {_number_of(facts, 'largest')}."
    elif kind == "spread":
        why = f"{_spread_words(facts)}; the nodes that suit it are in {_domains(facts, 'domains')}."
    elif _text(facts, "resource") == "tasks":
        why = _too_many_tasks(facts)
    else:
        why = f"Asks for {needs} in all; the nodes that suit it have {total}."
    return f"{why} It can never start as written."


def _too_many_tasks(facts: Facts) -> str:
    """What a number of nodes, or of tasks on each, leaves no room for is not measured in tasks alone."""
    needs, nodes, each = (_number(facts, name) for name in ("needs", "nodes_wanted", "tasks_per_node"))
    layout = f" on {amount('nodes', nodes)}" if nodes else ""
    layout += f" with {each:,} on each{'' if nodes else ' node'}" if each else ""
    if _number(facts, "total") < needs:
        held = f"hold {_number_of(facts, 'total')}"
    else:
        held = "have no room for that layout"
    return f"Asks for {amount('tasks', needs)}{layout} at once; all nodes that suit it, idle, {held}."


def _across_domains(facts: Facts) -> str:
    most = [amount("cpu_millis", _number(facts, "largest_cpu_millis")),
            amount("memory_mib", _number(facts, "largest_memory_mib"))]  # fmt: skip
    most += [amount("gpus", _number(facts, "largest_gpus"))] if _number(facts, "gpus") else []
    if not (_number(facts, "largest_cpu_millis") or _number(facts, "largest_memory_mib")):
        return "Asks for one NUMA domain; no node that suits it says what each of its domains has."
    if _number(facts, "total"):
        return (
            f"Asks for {_amount(facts, 'needs')} at once, each in one NUMA domain; all nodes that suit it, idle, "
            f"hold {_number_of(facts, 'total')} so."
        )
    return (
        f"Asks for all of {'a task' if _number(facts, 'needs') > 1 else 'it'} in one NUMA domain; on the nodes that "
        f"suit it none has more than {', '.join(most[:-1])} and {most[-1]}."
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
        return "There is no node yet."
    if gate == "combination":
        return "No single node has everything one task asks for together. It can never start as written."
    named = f" ({wanted})" if wanted else ""
    words = GATE_WORDS.get(gate, f"are turned away by {gate}")
    return f"No node matches: they {words}{named}. It can never start as written."


def _exceeds_max_quota(facts: Facts) -> str:
    return (
        f"Needs {_amount(facts, 'needs')}; the limit of {_text(facts, 'owner', 'its project')} is "
        f"{_number_of(facts, 'limit')}. Ask for less, or for a larger limit."
    )


def _exceeds_max_walltime(facts: Facts) -> str:
    return (
        f"Asks for {_duration(_number(facts, 'needs'))}; the queue {_text(facts, 'queue')} allows "
        f"{_duration(_number(facts, 'limit'))}. Shorten it or choose another queue."
    )


def _queue_stopped(facts: Facts) -> str:
    text = _text(facts, "text")
    return f"The queue {_text(facts, 'queue')} is paused{' ' + text if text else ''}."


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
        f"{_time(facts, 'ends_ms')}. A shorter time limit needs less."
    )


def _exceeds_budget(facts: Facts) -> str:
    return (
        f"Needs {budget_amount(facts, 'needs')}; the budget {_text(facts, 'budget')} has "
        f"{budget_amount(facts, 'limit')} in all. Ask for less time, or for a larger budget."
    )


def _quota_zero(facts: Facts) -> str:
    resource = {"gpu_millis": "GPU", "gpus": "GPU", "cpu_millis": "CPU", "memory_mib": "memory",
                "storage_mib": "storage"}.get(_text(facts, "resource"), _text(facts, "resource"))  # fmt: skip
    owner = _text(facts, "owner", "its project")
    return f"The limit of {owner} for {resource} is 0. Ask its lead or an administrator."


def _rate_limited(facts: Facts) -> str:
    running, limit = _number(facts, "running"), _number(facts, "limit")
    if _text(facts, "scope") == "array":
        return f"{running:,} of its array run, which is as many as it allows ({limit:,})."
    return (
        f"The queue {_text(facts, 'queue')} runs {running:,} {_plural('job', running)}, of {limit:,} allowed."
    )


def _waiting_for_quota(facts: Facts) -> str:
    owner = _text(facts, "owner", "its project")
    used, limit = _number_of(facts, "used"), _number_of(facts, "limit")
    if _number(facts, "elsewhere"):
        return (
            f"Waits for GPUs of another model: of {_text(facts, 'gpu_model')} it needs {_number_of(facts, 'needs')}, "
            f"and the limit of {owner} is {limit}."
        )
    text = f"Needs {_amount(facts, 'needs')}; {owner} uses {used} of {limit}"
    if "kept" in facts:
        text += f", and {_number_of(facts, 'kept')} more are kept for those below it that do not lend them"
    if "own" in facts:
        text += f"; {_text(facts, 'own')} uses {_number_of(facts, 'own_used')}"
        if "own_nominal" in facts:
            text += f" of its own {_number_of(facts, 'own_nominal')}"
            text += f" and may still borrow {_number_of(facts, 'may_borrow')}"
    return f"{text}."


def _reservation(facts: Facts) -> str:
    count = _number(facts, "reserved_nodes")
    name = _text(facts, "reservation")
    quoted = f" “{name}”" if name else ""
    return (
        f"The {_plural('node', count)} it would take ({count:,}) {'is' if count == 1 else 'are'} reserved"
        f"{quoted} from {_time(facts, 'starts_ms')} to {_time(facts, 'ends_ms')}."
    )


def _domains(facts: Facts, name: str) -> str:
    count = _number(facts, name)
    return f"{count:,} {_plural(_text(facts, 'topology'), count)}"


def _spread_words(facts: Facts) -> str:
    """`Asks to be in exactly 2 regions`."""
    least, most, each = _number(facts, "least"), _number(facts, "most"), _number(facts, "per_domain")
    topology = _text(facts, "topology")
    if least == most:
        how = (
            f"Asks to be in exactly {_domains(facts, 'least')}"
            if most > 1
            else f"Asks to be in one {topology}"
        )
    elif most:
        how = f"Asks to be in {least:,} to {_domains(facts, 'most')}"
    elif least > 1:
        how = f"Asks to be in at least {_domains(facts, 'least')}"
    else:
        how = "Asks for its tasks to be spread"
    return f"{how}, with at most {amount('tasks', each)} in each {topology}" if each else how


def _job_affinity(facts: Facts) -> str:
    kind, topology, jobs = _text(facts, "kind"), _text(facts, "topology"), _text(facts, "jobs")
    if kind == "spread":
        return f"{_spread_words(facts)}; now {_domains(facts, 'domains')} have room for it."
    tasks, open_, left = (_number(facts, name) for name in ("tasks", "open", "left"))
    of = f"{open_:,} of {amount('nodes', _number(facts, 'room'))} with room for it"
    if kind == "near" and not tasks:
        text = f"Has to be in the same {topology} as a job {jobs}; none runs"
    elif kind == "near":
        text = f"Has to be in the same {topology} as a job {jobs}; that leaves {of}"
    elif kind == "apart":
        text = f"Must not be in the same {topology} as a job {jobs}; that leaves {of}"
    else:
        text = f"Jobs that run keep jobs {jobs} out of their {topology}; that leaves {of}"
    return text + (f", and its other rules about jobs leave {left:,}." if left < open_ else ".")


def _crosses(facts: Facts) -> str:
    tasks, node, others = _number(facts, "needs"), _text(facts, "node"), _number(facts, "nodes") - 1
    across = f"{node} only across {_number(facts, 'domains') or 'several'} NUMA domains"
    more = (
        f", as {'does' if others == 1 else 'do'} {others:,} more {_plural('node', others)}"
        if others > 0
        else ""
    )
    if tasks == 1:
        return f"Needs all of it in one NUMA domain; it fits {across}{more}."
    return (
        f"Needs each of its {amount('tasks', tasks)} in one NUMA domain; there is room for "
        f"{_number_of(facts, 'free')} so, and more fit {across}{more}."
    )


def _topology_fragmented(facts: Facts) -> str:
    if "numa" in facts:
        return _crosses(facts)
    if "pack" in facts:
        where, most = _text(facts, "pack"), _number_of(facts, "largest")
        near = "on one node" if where == "node" else f"in one {where}"
        return (
            f"Needs room for {_amount(facts, 'needs')} {near}; there is room for "
            f"{_number_of(facts, 'free')}, but the roomiest {where} has room for {most}."
        )
    per_task, needs = _number(facts, "per_task"), _number(facts, "needs")
    each = f", {_number_of(facts, 'per_task')} on one node" if per_task != needs else " on one node"
    return (
        f"Needs {_amount(facts, 'needs')}{each}; {_number_of(facts, 'free')} are free, but in pieces: "
        f"the most on one node is {_number_of(facts, 'largest')}."
    )


def _backoff(facts: Facts) -> str:
    begin = _time(facts, "begin_ms")
    if "gathered_until_ms" in facts:
        return (
            f"Not all the nodes it gathered came free by {_time(facts, 'gathered_until_ms')}, so it gave them back; "
            f"it tries again at {begin} or later."
        )
    return f"Its last try failed; the next is at {begin} or later."


def _waiting_for_resources(facts: Facts) -> str:
    if "gathering" in facts:
        nodes = _number(facts, "gathering")
        return (
            f"Gathers {nodes:,} {_plural('node', nodes)} until {_time(facts, 'until_ms')}: there is room for "
            f"{_number_of(facts, 'free')} of its {_amount(facts, 'needs')}, the rest is kept for it as it comes free."
        )
    text = (
        f"Needs {_amount(facts, 'needs')}; {_number_of(facts, 'free')} of {_number_of(facts, 'total')} free"
    )
    if "ending" in facts:
        text += f", {_number_of(facts, 'ending')} more by {_time(facts, 'ending_by_ms')} at the latest"
    return text + "."


def _priority(facts: Facts) -> str:
    if "job" not in facts:
        return f"It would fit now, but the queue {_text(facts, 'queue')} starts jobs strictly in order."
    job, barred = _number(facts, "job"), _text(facts, "barred")
    if barred == "budget":
        return f"It would fit now, but what is left of a budget is kept for job {job} ahead of it."
    if barred == "scan":
        return f"It would fit now, but job {job} is ahead of it, and only some jobs behind that are tried each time."
    if barred == "priority":
        return (
            f"It would fit now, but job {job} is ahead of it, and here a job of its priority passes nobody."
        )
    if "start_ms" not in facts:
        return f"It would fit now, but job {job} is ahead of it."
    return (
        f"It would fit now, but it could still be running at {_time(facts, 'start_ms')}, when job "
        f"{job} ahead of it is expected to start there. A shorter time limit may let it pass."
    )


def _waiting_for_preemption(facts: Facts) -> str:
    count, numbers = _number(facts, "jobs"), _text(facts, "numbers")
    if not count:
        return "Other jobs are being stopped for it."
    more = count - len(numbers.split(", "))
    who = f"{numbers} and {more:,} more" if more > 0 else numbers
    one = count == 1
    givers, giver_numbers = _number(facts, "givers"), _text(facts, "giver_numbers")
    others = givers - len(giver_numbers.split(", "))
    beside = ""
    if givers:
        named = f"{giver_numbers} and {others:,} more" if others > 0 else giver_numbers
        beside = (
            f" {'Job' if givers == 1 else 'Jobs'} {named} {'gives' if givers == 1 else 'give'} up tasks too."
        )
    if _number(facts, "smaller"):
        return (
            f"{'Job' if one else f'{count:,} jobs:'} {who} {'gives' if one else 'give'} up tasks for it and "
            f"{'has' if one else 'have'} until {_time(facts, 'stop_by_ms')} to end them."
        )
    if _number(facts, "suspended"):
        return f"{'Job' if one else f'{count:,} jobs:'} {who} {'is' if one else 'are'} being suspended for it.{beside}"
    return (
        f"{'Job' if one else f'{count:,} jobs:'} {who} {'is' if one else 'are'} being stopped for it and "
        f"{'has' if one else 'have'} until {_time(facts, 'stop_by_ms')} to end.{beside}"
    )


def _fair_share_behind(facts: Facts) -> str:
    if not _number(facts, "limit_percent"):
        return "Projects that used less go first."
    owner = _text(facts, "owner", "its project")
    return (
        f"{owner[:1].upper()}{owner[1:]} had {_number(facts, 'used_percent')} % of the site lately; its share "
        f"may be {_number(facts, 'limit_percent')} % at most. It goes on as that use wears off."
    )


def _agent_unreachable(facts: Facts) -> str:
    count = _number(facts, "unreachable")
    return f"None of the nodes that could run it ({count:,}) answers."


_SENTENCES: Final[Mapping[ReasonCode, Callable[[Facts], str]]] = {
    ReasonCode.INVALID_SPEC: _invalid_spec,
    ReasonCode.NO_MATCHING_NODE: _no_matching_node,
    ReasonCode.EXCEEDS_MAX_QUOTA: _exceeds_max_quota,
    ReasonCode.EXCEEDS_MAX_WALLTIME: _exceeds_max_walltime,
    ReasonCode.DEPENDENCY_NEVER_SATISFIED: lambda _: (
        "A job it waits for ended in a way that can never satisfy it. Cancel it or change what it depends on."
    ),
    ReasonCode.IMAGE_NOT_FOUND: lambda _: "Its image does not exist.",
    ReasonCode.QUEUE_STOPPED: _queue_stopped,
    ReasonCode.HELD_BY_ADMIN: lambda _: "Held by an operator until released.",
    ReasonCode.HELD_BY_USER: lambda _: "Held by its owner until released.",
    ReasonCode.ACCOUNT_EXPIRED: lambda _: "Its account or project is closed.",
    ReasonCode.QUOTA_ZERO: _quota_zero,
    ReasonCode.BUDGET_SPENT: _budget_spent,
    ReasonCode.EXCEEDS_BUDGET: _exceeds_budget,
    ReasonCode.QUOTA_PROVIDER_AWAY: lambda facts: _text(
        facts, "text", "Whoever keeps its project's quota is away."
    ),
    ReasonCode.APPROVAL_PENDING: lambda _: "Waits for somebody to approve it.",
    ReasonCode.BEGIN_TIME: lambda facts: f"Begins at {_time(facts, 'begin_ms')} or later, as asked.",
    ReasonCode.DEPENDENCY: lambda _: "Waits for other jobs to end.",
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
    ReasonCode.NOT_EVALUATED_YET: lambda _: "Not looked at yet. The next cycle is seconds away.",
    ReasonCode.SCHEDULER_BEHIND: lambda _: "The scheduler is behind.",
    ReasonCode.AGENT_UNREACHABLE: _agent_unreachable,
    ReasonCode.DATA_STALE: lambda _: "What is known of the cluster is too old to decide on.",
}
