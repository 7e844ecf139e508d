"""The planner: one Celery task that stays, plans what asks for it, and every cluster by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from django.conf import settings
from django.db import DatabaseError, close_old_connections

from infra.machine.freed_memory import keep_freed_memory
from scheduler.models import Cluster
from scheduler.services.accounting import metric_counts
from scheduler.services.planning import cycles
from scheduler.services.planning.residents import resident_of
from scheduler.services.planning.wakeups import WITHOUT_HINTS_SECONDS, Asked, WakeUps
from scheduler.state.lease import leases
from scheduler.state.records import policy_faults

log = structlog.get_logger(__name__)

#: The task ends after so long, so that its worker can look after itself; beat's next tick is there by then.
STAY_SECONDS: Final = 60.0
#: A worker that is asked to stop is noticed within this time.
NOTICE_SECONDS: Final = 0.5
#: After a cycle that failed.
RETRY_SECONDS: Final = 1.0
#: A planner whose terms no longer follow each other is at work while these go on within this number of ticks.
TICKS_OF_ANOTHER: Final = 2
#: Clusters are listed anew this often.
LIST_SECONDS: Final = 10.0


def stay(*, seconds: float = STAY_SECONDS, stop: Callable[[], bool] | None = None) -> None:
    """Plan until `seconds` are over, for as long as no broker could start this anew, or until the worker stops."""
    keep_freed_memory()  # each cycle allocates the arrays of the one before
    _planner.run(seconds, stop or worker_stops)


def worker_stops() -> bool:
    """Whether this Celery worker was asked to stop."""
    from celery.worker import state  # a worker has it loaded; others, who only know the task, need not

    asked = (state.should_stop, state.should_terminate)
    return any(one is not None and one is not False for one in asked)


@dataclass
class Planner:
    """Plans the clusters of this portal, each in its own time; kept from one run of the task to the next."""

    wakeups: WakeUps = field(default_factory=WakeUps)
    clock: Callable[[], float] = time.monotonic
    #: Cluster -> why it is to be planned as soon as it may.
    _asked: dict[int, str] = field(default_factory=dict)
    #: Cluster -> when the clock asks next.
    _tick_at: dict[int, float] = field(default_factory=dict)
    _listed_at: float = float("-inf")
    #: Clusters whose last cycle of this planner succeeded.
    _well: set[int] = field(default_factory=set)
    #: Cluster -> the last term of another planner that was seen, and since when.
    _others: dict[int, tuple[int, float]] = field(default_factory=dict)

    def run(self, seconds: float, stop: Callable[[], bool]) -> None:
        """One run of the task."""
        ends_at = self.clock() + seconds
        while not stop() and (self.clock() < ends_at or not self.wakeups.connected):
            try:
                self.turn()
            except Exception:
                log.exception("planner_failed")
                close_old_connections()
                time.sleep(RETRY_SECONDS)

    def turn(self) -> None:
        """Wait until a cluster is to be planned, or a moment; plan those whose turn it is."""
        self._list_clusters()
        self._take(self.wakeups.wait(self._pause()))
        now = self.clock()
        for cluster_id, tick_at in self._tick_at.items():
            if tick_at <= now:
                self._asked.setdefault(cluster_id, "clock")
        for cluster_id in [one for one in self._asked if cycles.next_cycle_at(one) <= now]:
            self._plan(cluster_id, self._asked.pop(cluster_id))

    def _pause(self) -> float:
        """How long nothing is to be planned, if nothing asks for it."""
        due = [self._tick_at[one] for one in self._tick_at if one not in self._asked]
        due += [cycles.next_cycle_at(one) for one in self._asked]
        return min(max(min(due, default=NOTICE_SECONDS) - self.clock(), 0.0), NOTICE_SECONDS)

    def _list_clusters(self) -> None:
        if self.clock() < self._listed_at + LIST_SECONDS:
            return
        there = list(Cluster.objects.order_by("id").values_list("id", flat=True))
        self._tick_at = {one: self._tick_at.get(one, self.clock()) for one in there}
        self._asked = {one: why for one, why in self._asked.items() if one in self._tick_at}
        self._listed_at = self.clock()

    def _take(self, asked: Asked) -> None:
        for cluster_id, trigger in asked.items():
            if cluster_id is not None and cluster_id not in self._tick_at:
                self._listed_at = float("-inf")  # a new one; its first cycle is by the clock
            for one in self._tick_at if cluster_id is None else {cluster_id} & self._tick_at.keys():
                self._asked.setdefault(one, trigger)

    def _plan(self, cluster_id: int, trigger: str) -> None:
        """One cycle; one that fails delays no other cluster."""
        every = settings.PLAN_SECONDS if self.wakeups.connected else WITHOUT_HINTS_SECONDS
        self._tick_at[cluster_id] = self.clock() + every
        if self._another_is_at_work(cluster_id):
            return
        try:
            cycles.run_cycle(cluster_id=cluster_id, trigger=trigger, patience_seconds=0)
            if cluster_id not in self._well:
                policy_faults.cycle_is_well(cluster_id)
                self._well.add(cluster_id)
        except Exception as error:
            log.exception("cycle_failed", cluster=cluster_id)
            close_old_connections()
            metric_counts.add_one(metric_counts.CYCLES_FAILED, str(cluster_id))
            self._well.discard(cluster_id)
            _alarm(cluster_id, error)
            self._tick_at[cluster_id] = self.clock() + RETRY_SECONDS

    def _another_is_at_work(self, cluster_id: int) -> bool:
        """Whether another planner goes on with this cluster: what it has in memory is worth more than ours.

        Two that took turns would each read everything anew every time.
        """
        term, ours = leases.last_term(leases.cluster_scope(cluster_id)), resident_of(cluster_id).last_token
        if ours is None or term is None or term == ours:  # one that has just begun takes over
            self._others.pop(cluster_id, None)
            return False
        seen, now = self._others.get(cluster_id), self.clock()
        if seen is None or seen[0] != term:
            self._others[cluster_id] = (term, now)
            return True
        return now < seen[1] + TICKS_OF_ANOTHER * float(settings.PLAN_SECONDS)


def _alarm(cluster_id: int, error: Exception) -> None:
    """Every page says that cycles fail, and operators why; a database that does not answer has an alarm of its own."""
    if isinstance(error, DatabaseError):
        return
    try:
        policy_faults.note_cycle(cluster_id, f"{type(error).__name__}: {error}")
    except DatabaseError:
        log.exception("alarm_not_written", cluster=cluster_id)
        close_old_connections()


_planner = Planner()
