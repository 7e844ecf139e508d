"""Admission's own arithmetic and the core's, over random worlds: where they differ, and which is right."""

from __future__ import annotations

from collections import Counter

from hypothesis import given

from scheduler.core.placement.shape import Shape
from scheduler.core.snapshot.snapshot import MUST, PACKS, Snapshot
from scheduler.core.whatif.idle_cluster import IdleCluster, idle
from scheduler.selectors import NodeShape
from scheduler.services.submission import admission
from tests.support.builders import World
from tests.support.strategies import worlds

#: What only the core looks at: extras, one NUMA domain, a required pack, a spread, an exact number on each node.
ONLY_THE_CORE = {"total", "numa", "shape", "spread", "rack", "zone", "node", "combination"}


def shapes_of(snapshot: Snapshot) -> tuple[NodeShape, ...]:
    nodes, counts = snapshot.nodes, Counter[tuple[object, ...]]()
    for row, node_id in enumerate(nodes.id.tolist()):
        models = Counter(
            model
            for model, on in zip(snapshot.devices.model, snapshot.devices.node_id.tolist(), strict=True)
            if on == node_id
        )
        cpu, memory = int(nodes.cpu_millis[row]), int(nodes.memory_mib[row])
        size_cpu, size_memory = int(nodes.size_cpu_millis[row]) or cpu, int(nodes.size_memory_mib[row]) or memory
        gpus = tuple(sorted(models.items()))
        counts[
            cpu, memory, int(nodes.storage_mib[row]), gpus, min(cpu, size_cpu), min(memory, size_memory)
        ] += 1
    return tuple(NodeShape(*known[:4], count, *known[4:]) for known, count in counts.items())  # type: ignore[arg-type]


@given(worlds())
def test_the_core_refuses_all_that_admission_refuses_and_knows_more_rules(world: World) -> None:
    snapshot = world.snapshot
    cluster, shapes, pending = IdleCluster(idle(snapshot)), shapes_of(snapshot), snapshot.pending
    for row in range(len(pending)):
        request, pack = snapshot.classes[pending.class_index[row]], int(pending.pack[row])
        tasks, nodes, each = (int(column[row]) for column in (pending.tasks, pending.nodes, pending.tasks_per_node))
        shape = Shape(tasks, nodes, each, int(pending.most_tasks[row]), PACKS[pack % MUST], pack >= MUST)

        found = cluster.never_fits(request, shape)

        holds = admission._holds(
            shapes, request.per_task, request.gpu_model, tasks, nodes or None, each or None
        )
        if not holds:
            assert found
        elif found:
            facts = dict(found[0].facts)
            assert facts.get("kind", facts.get("gate")) in ONLY_THE_CORE
            assert (
                request.per_task.extras or request.one_domain or shape.must or each or request.task_term
            ), found
