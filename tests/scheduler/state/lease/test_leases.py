"""One planner a scope: terms, their fencing tokens, and how long a holder may trust them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial

import pytest
from django.db import connection, transaction

from scheduler.agent.processes import start_ticks
from scheduler.models import Lease
from scheduler.state.lease import leases
from scheduler.state.lease.lease_holder import is_gone, new_holder
from scheduler.state.lease.leases import MARGIN_SECONDS, LeaseLost
from tests.support.at_once import at_once

pytestmark = pytest.mark.django_db(transaction=True)


class AClock:
    """A monotonic clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def expire(scope: str) -> None:
    """Only the database's clock ends a term: move the end, not the clock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE scheduler_lease SET expires_at = clock_timestamp() - interval '1 ms' WHERE scope = %s",
            [scope],
        )


def test_a_scope_has_one_holder_until_its_term_is_over() -> None:
    first = leases.acquire("cluster:1", holder="a", seconds=10)
    assert first is not None

    assert leases.acquire("cluster:1", holder="b", seconds=10) is None
    expire("cluster:1")
    second = leases.acquire("cluster:1", holder="b", seconds=10)

    assert second is not None
    assert second.token == first.token + 1


def test_other_scopes_are_free() -> None:
    assert leases.acquire("cluster:1", holder="a", seconds=10)
    assert leases.acquire("cluster:2", holder="b", seconds=10)


def test_a_released_scope_is_free_at_once_and_its_token_still_rises() -> None:
    first = leases.acquire("cluster:1", holder="a", seconds=10)
    assert first is not None
    assert leases.release(first)

    second = leases.acquire("cluster:1", holder="a", seconds=10)

    assert second is not None
    assert second.token == first.token + 1


def test_t11_a_holder_that_is_cut_off_issues_nothing_after_its_trust_window() -> None:
    clock = AClock()
    lease = leases.acquire("cluster:1", holder="a", seconds=10, clock=clock)
    assert lease is not None
    with transaction.atomic():
        leases.fence(lease)

    clock.now += 10 - MARGIN_SECONDS

    assert not lease.trusted
    with pytest.raises(LeaseLost), transaction.atomic():
        leases.fence(lease)


def test_t11_a_holder_that_was_replaced_is_stopped_by_its_token_while_it_still_trusts_itself() -> None:
    old = leases.acquire("cluster:1", holder="a", seconds=10)
    assert old is not None
    expire("cluster:1")
    leases.acquire("cluster:1", holder="b", seconds=10)

    assert old.trusted
    with pytest.raises(LeaseLost), transaction.atomic():
        leases.fence(old)


def test_t11_a_term_that_the_database_calls_over_is_over_even_if_nobody_took_it() -> None:
    lease = leases.acquire("cluster:1", holder="a", seconds=10)
    assert lease is not None
    expire("cluster:1")

    with pytest.raises(LeaseLost), transaction.atomic():
        leases.fence(lease)


def test_t12_a_slow_renewal_does_not_extend_trust() -> None:
    clock = AClock()
    lease = leases.acquire("cluster:1", holder="a", seconds=10, clock=clock)
    assert lease is not None

    class SlowClock(AClock):
        """The answer takes 30 seconds: everything after the first look is that much later."""

        def __init__(self) -> None:
            super().__init__()
            self.looks = 0

        def __call__(self) -> float:
            self.looks += 1
            return self.now if self.looks == 1 else self.now + 30

    slow = leases.HeldLease(lease.scope, lease.holder, lease.token, lease.trusted_until, SlowClock())
    renewed = leases.renew(slow, seconds=10)

    assert renewed.trusted_until == 1000 + 10 - MARGIN_SECONDS
    assert not renewed.trusted


def test_a_quick_renewal_extends_trust() -> None:
    clock = AClock()
    lease = leases.acquire("cluster:1", holder="a", seconds=10, clock=clock)
    assert lease is not None
    clock.now += 5

    renewed = leases.renew(lease, seconds=10)

    assert renewed.token == lease.token
    assert renewed.trusted_seconds == pytest.approx(10 - MARGIN_SECONDS)


def test_a_term_that_is_over_cannot_be_renewed() -> None:
    lease = leases.acquire("cluster:1", holder="a", seconds=10)
    assert lease is not None
    expire("cluster:1")

    with pytest.raises(LeaseLost):
        leases.renew(lease, seconds=10)


def test_t13_a_delayed_release_of_an_old_term_leaves_the_new_one_of_the_same_holder() -> None:
    old = leases.acquire("cluster:1", holder="a", seconds=10)
    assert old is not None
    expire("cluster:1")
    new = leases.acquire("cluster:1", holder="a", seconds=10)
    assert new is not None

    assert not leases.release(old)

    row = Lease.objects.get(scope="cluster:1")
    assert (row.holder, row.token) == ("a", new.token)
    with transaction.atomic():
        leases.fence(new)


def test_holders_have_names_of_their_own() -> None:
    assert new_holder() != new_holder()


# ------------------------------------------------------------------ a holder that was killed


def a_holder_elsewhere() -> tuple[subprocess.Popen[bytes], str]:
    """A process that is alive until told otherwise, and the name it would plan under."""
    code = (
        "import sys\nfrom scheduler.state.lease import lease_holder\n"
        "print(lease_holder.new_holder(), flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, process.stdout.readline().decode().strip()


def test_finding_27_a_killed_holder_is_not_waited_for_and_a_living_one_keeps_its_term() -> None:
    process, name = a_holder_elsewhere()
    with process:
        first = leases.acquire("cluster:1", holder=name, seconds=60)
        assert first is not None
        assert not leases.end_if_gone("cluster:1")

        process.kill()
        process.wait()

    assert leases.end_if_gone("cluster:1")
    second = leases.acquire("cluster:1", holder="b", seconds=60)
    assert second is not None
    assert second.token == first.token + 1


def test_a_holder_that_is_only_stopped_is_waited_for_and_writes_nothing_after_its_term() -> None:
    process, name = a_holder_elsewhere()
    with process:
        first = leases.acquire("cluster:1", holder=name, seconds=60)
        assert first is not None
        process.send_signal(signal.SIGSTOP)

        assert not leases.end_if_gone("cluster:1")
        assert leases.acquire("cluster:1", holder="b", seconds=60) is None

        expire("cluster:1")
        assert leases.acquire("cluster:1", holder="b", seconds=60) is not None
        process.kill()
    with pytest.raises(LeaseLost), transaction.atomic():
        leases.fence(first)


def test_of_many_who_find_a_killed_holder_one_takes_its_scope() -> None:
    process, name = a_holder_elsewhere()
    with process:
        assert leases.acquire("cluster:1", holder=name, seconds=60) is not None
        process.kill()

    def take_over(number: int) -> int | None:
        leases.end_if_gone("cluster:1")
        lease = leases.acquire("cluster:1", holder=f"planner-{number}", seconds=60)
        return lease.token if lease else None

    tokens = at_once(*[partial(take_over, number) for number in range(4)])

    assert sorted(token for token in tokens if token) == [2]
    assert len(tokens) == 4


def test_only_a_process_of_this_place_is_known_to_be_gone() -> None:
    host, place, pid, started, unique = new_holder().rsplit(":", 4)

    assert not is_gone(":".join([host, place, pid, started, unique]))
    assert is_gone(
        ":".join([host, place, pid, f"t{int(started[1:]) - 6_000}", unique])
    )  # its number, given out again
    assert not is_gone(":".join([host, "elsewhere0", "999999999", started, unique]))
    # What earlier versions wrote, in milliseconds of a clock that can be set.
    assert not is_gone(":".join([host, place, pid, "1795857480000", unique]))
    assert not is_gone("a name of another form")
    assert not is_gone("")


def test_a_planner_is_named_by_a_clock_that_nobody_can_set() -> None:
    """In milliseconds since 1970 it would seem to be another process once the clock has been moved forward."""
    assert new_holder().rsplit(":", 2)[1] == f"t{start_ticks(os.getpid())}"
