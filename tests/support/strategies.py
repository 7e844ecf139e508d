"""Strategies: small crowded worlds, so that every rule is met in every second example.

Hypothesis draws the seed and the sizes, dice throw the rest: a world is made in a millisecond, and a failing
one shrinks to fewer nodes and jobs, because each is thrown from its own seed.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from scheduler.core.policy import PACKINGS, PLACEMENTS, Policy
from scheduler.core.snapshot.constraints import (
    OWN_ARRAY,
    JobSelector,
    JobTerm,
    Requirement,
    Taint,
    TaskTerm,
    Toleration,
)
from scheduler.core.snapshot.snapshot import GROUPS, JobGate, Snapshot
from tests.support.builders import (
    JobSpec,
    NodeSpec,
    QueueSpec,
    QuotaSpec,
    ReservationSpec,
    RunningSpec,
    World,
    a_job,
    a_world,
)

TEAM = Taint("team", "x")

QUOTAS: tuple[tuple[QuotaSpec, ...], ...] = (
    (),
    (
        QuotaSpec("gpu_millis", 2500),
        QuotaSpec("cpu_millis", 6000, projects=("vision", "speech"), owner="lab"),
    ),
    (QuotaSpec("running_jobs", 2, projects=("speech",), owner="project speech"), QuotaSpec("memory_mib", 0)),
    (QuotaSpec("gpu_millis", 500, enforce=False), QuotaSpec("cpu_millis", 4000, used=1000)),
)


def a_random_node(dice: random.Random, name: str, *, cut: bool = False) -> NodeSpec:
    gpus = dice.choice([0, 2, 4, 4])
    return NodeSpec(
        name,
        cpus=dice.choice([2, 4, 8]),
        memory_gib=dice.choice([4, 8, 16]),
        gpus=gpus,
        numa=dice.choice([1, 2]),
        domains=random.Random(f"{name} domains").random() < 0.8,
        model=dice.choice(["H100-80GB", "A100"]),
        slices=("1g.10gb", "1g.10gb", "3g.40gb") if name == "n2" and cut else (),
        unhealthy=dice.choice([(), (), (), (0,)]) if gpus else (),
        state=dice.choice(["up"] * 8 + ["down", "unknown"]),
        cordoned=dice.random() < 0.1,
        draining=dice.random() < 0.1,
        labels={"pool": dice.choice("ab")},
        rack=random.Random(f"{name} rack").choice(["", "r1", "r2"]),
        zone=random.Random(f"{name} zone").choice(["", "z1", "z2"]),
        region=random.Random(f"{name} region").choice(["", "e", "w"]),
        overcommit=2 if name == "n1" else 1,
        max_minutes=random.Random(f"{name} wall").choice([0, 0, 0, 0, 30, 60]),
        taints=dice.choice([(), (), (), (), (), (), (TEAM,), (Taint("slow", "", "PreferNoSchedule"),)]),
        partitions=dice.choice([(1,), (1, 2), (1, 2), (2,)]),
    )


def a_random_job(dice: random.Random, name: str, *, cut: bool = False) -> JobSpec:
    return a_job(name, **_random_words(dice, cut=cut))


def _random_words(dice: random.Random, *, cut: bool) -> dict[str, Any]:
    gpus = dice.choice([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 4])
    tasks = dice.choice([1, 1, 1, 2, 3, 4])
    words = {
        "cpus": dice.choice([0, 1, 1, 2, 4]),
        "memory_gib": dice.choice([0, 1, 1, 2]),
        "gpus": gpus,
        "share": dice.choice([0, 300, 500]) if gpus == 1 else 0,
        "model": dice.choice(["", "", "", "", "H100", "A100"]) if gpus else "",
        "selector": dice.choice([{}] * 7 + [{"pool": "a"}]),
        "affinity": dice.choice([()] * 8 + [((Requirement("pool", "NotIn", ("b",)),),)]),
        "tolerations": dice.choice([(), (), (Toleration("team", "Exists"),)]),
        "partitions": dice.choice([()] * 7 + [(2,)]),
        "extras": dice.choice([{}] * 6 + [{"matlab": 1}]),
        "queue": dice.choice(["main", "main", "side"]),
        "project": dice.choice(["vision", "speech"]),
        "priority": dice.choice([0, 50, 50, 100]),
        "submitted": dice.randint(-3, 0),
        "begin": dice.choice([None] * 8 + [-1, 5]),
        "tasks": tasks,
        "nodes": dice.choice([0, 0, 0, 0, 1, 2]) if tasks > 1 else dice.choice([0, 0, 0, 1]),
        "tasks_per_node": dice.choice([0, 0, 0, 0, 1, 2]) if tasks > 1 else 0,
        "minutes": dice.choice([0, 10, 30, 90]),
        "gate": dice.choice([JobGate.OPEN] * 12 + [JobGate.HELD_BY_USER, JobGate.DEPENDENCY]),
        "array": dice.choice([0, 0, 7]),
        "array_max_running": 1,
        "most": tasks + dice.choice([0, 1, 3]) if dice.random() < 0.3 else 0,
        "pack": dice.choice([""] * 6 + ["node!", "rack", "rack!", "zone!"]),
    }
    seed = dice.random()
    if random.Random(f"{seed} numa").random() < 0.12:
        words["numa"] = "one"
    if cut and random.Random(f"{seed} slice").random() < 0.25:
        words |= {"slice": random.Random(f"{seed} which").choice(["1g.10gb", "3g.40gb", "2g.20gb"])}
    return words | _random_company(random.Random(seed), tasks)


LIKES = (
    JobSelector(labels=(("app", "db"),)),
    JobSelector(labels=(("app", "web"),)),
    JobSelector(array_id=OWN_ARRAY),
)
SPREADS = (
    TaskTerm("zone", least=2, most=2), TaskTerm("region", per_domain=1), TaskTerm("rack", most=1),
    TaskTerm("node", least=2), TaskTerm("zone", per_domain=2, soft=True),
)  # fmt: skip


def _random_company(dice: random.Random, tasks: int) -> dict[str, Any]:
    """Now and then labels, rules about jobs with such labels, and a spread."""
    words: dict[str, Any] = {"labels": dice.choice([{}, {"app": "db"}, {"app": "web"}])}
    if dice.random() < 0.15:
        words["terms"] = [
            JobTerm(
                topology=dice.choice(["node", "rack", "zone", "region", "backend"]),
                jobs=dice.choice(LIKES),
                apart=dice.random() < 0.6,
                weight=dice.choice([0, 0, 50]),
            )
            for _ in range(dice.choice([1, 1, 2]))
        ]
    if tasks > 1 and dice.random() < 0.15:
        words |= {"spread": dice.choice(SPREADS), "nodes": 0, "tasks_per_node": 0, "pack": ""}
    return words


def random_running(dice: random.Random, nodes: list[NodeSpec], count: int) -> list[RunningSpec]:
    """Jobs of one task each, on nodes that have room for them."""
    left = {node.name: [node.cpus, node.memory_gib, 0] for node in nodes}
    unbound = {(node.name, domain): node.cpus // node.numa for node in nodes for domain in range(node.numa)}
    found: list[RunningSpec] = []
    for number in range(count if nodes else 0):
        node, gpus = dice.choice(nodes), dice.choice([0, 1, 2])
        cpus, memory, taken = left[node.name]
        if cpus < 1 or memory < 1 or taken + gpus > node.gpus:
            continue
        left[node.name] = [cpus - 1, memory - 1, taken + gpus]
        devices = tuple(range(int(taken), int(taken) + gpus))
        total = max(node.gpus + len(node.slices), 1)
        domains = {place * node.numa // total for place in devices} or {number % node.numa}
        bound = (node.numa == 1 or node.domains) and len(domains) == 1 and number % 2 == 0
        bound = bound and unbound[node.name, *domains] >= 1 and node.memory_gib >= 2 * node.numa
        if bound:
            unbound[node.name, *domains] -= 1
        job = a_job(
            f"r{number}",
            gpus=gpus,
            numa="one" if bound else "prefer",
            project=dice.choice(["vision", "speech"]),
            array=dice.choice([0, 0, 0, 7]),
            **_random_company(random.Random(number), 1),
        )
        ends_in = dice.choice([0, 10, 20])
        found.append(
            RunningSpec(
                job, ((node.name, devices),), ends_in=ends_in, domains=tuple(domains) if bound else ()
            )
        )
    return found


def a_random_tree(dice: random.Random) -> tuple[QuotaSpec, ...]:
    """Lines of two labs in a university, their projects, people and job types, some of one GPU model only.

    Some lend and some keep back; what is in use on a line is at least what is in use below it, and some limits
    were lowered to less than that.
    """
    lines: list[QuotaSpec] = []
    for resource, model, unit in dice.sample(
        [
            ("gpu_millis", "", 1000),
            ("gpu_millis", "H100", 1000),
            ("cpu_millis", "", 2000),
            ("running_jobs", "", 1),
        ],
        dice.choice([1, 2, 3]),
    ):
        kind = dice.choice([0, 0, 0, 1])

        def line(
            owner: str, projects: tuple[str, ...], most: int, used: int, above: str = "", user: int = 0,
            what: tuple[str, str, int, int] = (resource, model, unit, kind),
        ) -> int:  # fmt: skip
            """Now and then no such line; answers what is in use there."""
            resource, model, unit, kind = what
            if dice.random() < 0.25 and user == 0 and above:
                return used
            nominal = dice.choice([-1, unit * most // 2])
            may = nominal >= 0 and resource != "running_jobs"
            lines.append(
                QuotaSpec(
                    resource,
                    dice.choice([-1, -1, unit * most, unit * most, max(used - unit, 0)]),
                    projects=projects,
                    owner=owner,
                    used=used,
                    enforce=dice.random() < 0.9,
                    nominal=nominal,
                    borrowing_limit=dice.choice([-1, 0, unit]) if may else -1,
                    lending_limit=dice.choice([-1, 0, unit]) if may else -1,
                    above=above,
                    is_pool=owner.startswith("organization"),
                    model=model,
                    user=user,
                    job_type=kind,
                )
            )
            return used

        whole = 0
        for lab, project in (("organization a", "vision"), ("organization b", "speech")):
            own = unit * dice.choice([0, 0, 1])
            line(f"mia in {project}", (project,), 2, own, f"project {project}", user=1)
            own += unit * dice.choice([0, 0, 1])
            line(f"project {project}", (project,), 3, own, lab)
            line(lab, (project,), 4, own, "organization university")
            whole += own
        line("organization university", ("vision", "speech"), 6, whole)
        if dice.random() < 0.3:
            line("user mia", ("vision", "speech"), 3, 0, user=1)
    # A line can only stand below one that is there.
    owners = {(one.owner, one.resource, one.model, one.job_type) for one in lines}
    return tuple(
        one if (one.above, one.resource, one.model, one.job_type) in owners else replace(one, above="")
        for one in lines
    )


def a_world_of_lines(seed: int, node_count: int, job_count: int) -> World:
    """A random world, in every other one with GPUs that are cut into slices, under a random tree of limits."""
    tree = a_random_tree(random.Random(f"{seed} lines"))
    return a_random_world(seed, node_count, job_count, tree, cut=seed % 2 == 1)


def a_random_world(
    seed: int,
    node_count: int,
    job_count: int,
    quotas: tuple[QuotaSpec, ...] | None = None,
    *,
    cut: bool = False,
    parts: bool = False,
) -> World:
    """So many nodes and waiting jobs; a few running ones, quotas on a path, a reservation, a licence.

    `cut`: some GPUs are cut into slices, and some jobs ask for one. `parts`: parts of nodes are reserved, and some
    jobs name a reservation.
    """
    dice = random.Random(seed)
    nodes = [
        a_random_node(random.Random(f"{seed} n{number}"), f"n{number}", cut=cut)
        for number in range(node_count)
    ]
    reservations = [
        ReservationSpec(
            "booked",
            (dice.choice(nodes).name,),
            starts_in=dice.choice([-5, 20]),
            projects=dice.choice([(), ("speech",)]),
        )
        for _ in range(dice.choice([0, 1, 1, 2]) if nodes else 0)
    ]
    inside: tuple[str, ...] = ("",)
    if parts:
        reservations = [*reservations[:1], *_parts_of(random.Random(f"{seed} parts"), nodes)]
        inside = ("", "", "gone", *(one.name for one in reservations), *(one.name for one in reservations))
    own = random.Random(f"{seed} inside")
    return a_world(
        nodes=nodes,
        running=[
            replace(one, job=replace(one.job, reservation=own.choice(inside)))
            for one in random_running(dice, nodes, dice.randint(0, 4))
        ],
        pending=[
            replace(_a_twin(seed, number, cut=cut), reservation=own.choice(inside))
            for number in range(job_count)
        ],
        queues=(
            QueueSpec("main", max_minutes=dice.choice([0, 0, 60])),
            QueueSpec(
                "side",
                priority=dice.choice([10, 90]),
                paused=dice.choice([None, None, None, "by A. Admin: maintenance"]),
                max_concurrent_jobs=dice.choice([0, 0, 1]),
                partitions=dice.choice([(), (), (1,)]),
            ),
        ),
        quotas=dice.choice(QUOTAS) if quotas is None else quotas,
        reservations=reservations,
        licences={"matlab": (2, dice.randint(0, 1))},
    )


def _parts_of(dice: random.Random, nodes: list[NodeSpec]) -> list[ReservationSpec]:
    """Reservations of parts of some nodes, of which no two hold the same."""
    found = []
    for number in range(dice.choice([1, 2, 3]) if nodes else 0):
        share = slice(number, None, 3)  # every third device, and a third of the amounts
        some = dice.sample(nodes, dice.randint(1, len(nodes)))
        found.append(
            ReservationSpec(
                f"part{number}",
                (),
                starts_in=dice.choice([-5, -5, 20, 45]),
                minutes=dice.choice([30, 60, 120]),
                projects=dice.choice([("vision",), ("speech",)]),
                parts=tuple(
                    (
                        node.name,
                        node.cpus / 3 if dice.random() < 0.8 else 0,
                        node.memory_gib / 3,
                        tuple(range(node.gpus))[share],
                    )
                    for node in some
                ),
                magnetic=False,
            )
        )
    return found


def _a_twin(seed: int, number: int, *, cut: bool) -> JobSpec:
    """Every other job asks for the same as the one before it, so that one question is put more than once."""
    job = a_random_job(random.Random(f"{seed} j{number // 2}"), f"j{number}", cut=cut)
    own = random.Random(f"{seed} t{number}")
    return replace(
        job,
        submitted=own.randint(-3, 0),
        priority=own.choice([0, 50, 50, 100]),
        project=own.choice(["vision", "speech"]),
        user=own.choice([1, 2]),
        kind=own.choice([0, 1]),
    )


def strangers(world: World) -> World:
    """The same world where no job has terms about others: where those will be later is not foretold."""
    snapshot = world.snapshot
    groups = {name: getattr(snapshot, name) for name in GROUPS}
    classes = [replace(request, job_terms=()) for request in snapshot.classes]
    return replace(world, snapshot=Snapshot.build(now_ms=snapshot.now_ms, classes=classes, **groups))


def worlds_of_lines() -> st.SearchStrategy[World]:
    return st.builds(
        a_world_of_lines,
        seed=st.integers(0, 2**32 - 1),
        node_count=st.sampled_from([4, 3, 2, 1]),
        job_count=st.sampled_from([10, 6, 3, 1]),
    )


def worlds_of_parts() -> st.SearchStrategy[World]:
    """Worlds with reservations of parts of nodes, and jobs that name one."""
    return st.builds(
        a_random_world,
        seed=st.integers(0, 2**32 - 1),
        node_count=st.sampled_from([3, 2, 1]),
        job_count=st.sampled_from([10, 6, 3, 1]),
        parts=st.just(True),
    )


def worlds() -> st.SearchStrategy[World]:
    return st.builds(
        a_random_world,
        seed=st.integers(0, 2**32 - 1),
        node_count=st.sampled_from([4, 5, 6, 3, 2, 1, 0]),
        job_count=st.sampled_from([12, 8, 4, 2, 1, 0]),
    )


def policies() -> st.SearchStrategy[Policy]:
    """One for the cluster, and now and then another for its first queue."""
    return st.builds(
        lambda policy, own: replace(policy, queues=((1, own),) if own is not None else ()),
        one_policy(),
        st.one_of(st.none(), st.none(), one_policy()),
    )


def one_policy() -> st.SearchStrategy[Policy]:
    return st.builds(
        Policy,
        name=st.sampled_from(["fifo", "priority", "priority", "fairshare", "sjf", "edf", "fair_queue"]),
        strict_order=st.booleans(),
        placement=st.sampled_from(PLACEMENTS),
        packing=st.sampled_from(PACKINGS),
        tie_breakers=st.sampled_from([(), ("tasks",), ("-priority", "eligible_ms")]),
    )
