"""Random trees of limits: the planner, the obvious one, the applier's check and the virtual clock agree."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from scheduler.core.cycle import plan_cycle
from scheduler.core.forecast.virtual_cluster import VirtualCluster
from scheduler.core.policy import Policy
from scheduler.core.revalidate import find_conflicts
from tests.support import reference_planner
from tests.support.applied import applied
from tests.support.builders import World
from tests.support.strategies import policies, worlds_of_lines

SOME = settings(max_examples=70, deadline=None, suppress_health_check=list(HealthCheck))


@given(worlds_of_lines(), policies())
@SOME
def test_every_line_is_kept_and_none_keeps_more_from_starting_than_it_must(
    world: World, policy: Policy
) -> None:
    plan = plan_cycle(world.snapshot, policy)

    reference_planner.check(world.snapshot, policy, plan)
    assert find_conflicts(plan, world.snapshot, policy) == ()


@given(worlds_of_lines(), policies())
@SOME
def test_what_is_applied_is_what_the_virtual_clock_sees(world: World, policy: Policy) -> None:
    snapshot = world.snapshot
    plan = plan_cycle(snapshot, policy)
    later = applied(snapshot, plan)
    cluster = VirtualCluster(snapshot)

    cluster.apply(plan, snapshot.now_ms)
    seen = cluster.snapshot_at(snapshot.now_ms, cluster.jobs.id[:0])
    assert seen.quotas.used.tolist() == later.quotas.used.tolist()
    assert sorted(seen.running.job_type.tolist()) == sorted(later.running.job_type.tolist())

    for start in plan.starts:
        cluster.end(start.job_id, world.snapshot.now_ms)
    assert (
        cluster.snapshot_at(snapshot.now_ms, cluster.jobs.id[:0]).quotas.used.tolist()
        == snapshot.quotas.used.tolist()
    )
