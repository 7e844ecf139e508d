"""Recordings: the same value gives the same bytes, and anything else is refused by name."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest

from scheduler.core.cycle import plan_cycle
from scheduler.core.plan import Plan, Preempt, WaitingColumns
from scheduler.core.policy import Policy
from scheduler.core.snapshot.codec import (
    VERSION,
    CodecError,
    decode_plan,
    decode_policy,
    decode_snapshot,
    digest,
    encode_plan,
    encode_policy,
    encode_snapshot,
)
from scheduler.core.snapshot.constraints import Requirement, Taint, Toleration
from scheduler.core.snapshot.snapshot import Snapshot
from tests.support.builders import a_job, a_node, a_policy, a_quota, a_reservation, a_world, running


def a_full_snapshot() -> Snapshot:
    return a_world(
        nodes=[
            a_node(
                "n-é", gpus=4, labels={"a": "b"}, taints=(Taint("k", "v", "NoExecute"),), partitions=(1, 2)
            )
        ],
        running=[running(a_job("old", gpus=2), ("n-é", [0, 1]), ends_in=5)],
        pending=[
            a_job(
                "new",
                gpus=1,
                share=250,
                model="H100",
                extras={"matlab": 2},
                selector={"a": "b"},
                tolerations=[Toleration("k", "Exists")],
                affinity=[[Requirement("a", "In", ("b", "c"))]],
                partitions=[2],
                minutes=30,
            ),
            a_job("never", gpus=99),
        ],
        quotas=[a_quota("gpu_millis", 9000)],
        reservations=[a_reservation("course", "n-é", starts_in=60, users=(3,))],
        licences={"matlab": (5, 1)},
    ).snapshot


def test_a_snapshot_comes_back_equal_with_every_kind_of_column() -> None:
    snapshot = a_full_snapshot()

    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


def test_a_plan_and_a_policy_come_back_equal() -> None:
    policy = Policy(name="priority", tie_breakers=("tasks",), weights=(("tightness", 3),), plugins=("x",))
    plan = plan_cycle(a_full_snapshot(), a_policy())

    assert plan.starts
    assert plan.decisions
    assert decode_plan(encode_plan(plan)) == plan
    assert decode_policy(encode_policy(policy)) == policy


def test_equal_values_have_equal_bytes_and_digests_and_others_have_not() -> None:
    one, same = a_full_snapshot(), a_full_snapshot()
    other = replace(one, now_ms=one.now_ms + 1)

    assert encode_snapshot(one) == encode_snapshot(same)
    assert digest(one) == digest(same) != digest(other)


def test_columns_are_kept_narrow() -> None:
    jobs = [a_job(f"j{number}") for number in range(2000)]

    assert len(encode_snapshot(a_world(nodes=[a_node("n1")], pending=jobs).snapshot)) < 20_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"MUSTER",
        b"\x00" * 50,
        encode_plan(plan_cycle(a_full_snapshot(), a_policy())),
        encode_policy(a_policy()),
    ],
)
def test_what_is_not_a_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_snapshot(data)


def test_damage_anywhere_is_refused_or_harmless() -> None:
    whole = encode_snapshot(a_full_snapshot())

    for cut in range(0, len(whole), 37):
        with pytest.raises(CodecError):
            decode_snapshot(whole[:cut])
    raw = zlib.decompress(whole[8:])
    for place in range(0, len(raw), 101):
        broken = whole[:8] + zlib.compress(raw[:place] + bytes([raw[place] ^ 0x55]) + raw[place + 1 :])
        try:
            decode_snapshot(broken)
        except CodecError:
            continue


def test_another_version_is_refused_by_its_number() -> None:
    whole = encode_policy(a_policy())
    own = f'"version":{VERSION}'.encode()
    later = whole[:8] + zlib.compress(zlib.decompress(whole[8:]).replace(own, b'"version":9'))

    with pytest.raises(CodecError, match="version 9"):
        decode_policy(later)


def test_by_which_right_somebody_was_stopped_comes_back_too() -> None:
    stops = tuple(
        Preempt(1, 2, 3, 4, 50, 60, 7, 8, kind=kind, line="project vision")
        for kind in ("preempt", "reclaim", "converge")
    )
    stops = (replace(stops[0], line=""), *stops[1:], replace(stops[0], line="", node_id=9, taint=("k", "v")))
    plan = Plan(preempts=stops)

    assert decode_plan(encode_plan(plan)) == plan


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(np.arange(10**9, 10**9 + 5000), id="one after the other"),
        pytest.param(np.arange(5000) * 120 - 300_000, id="steps of one byte"),
        pytest.param(np.where(np.arange(5000) % 2, 2**62, -(2**62)), id="steps beyond 64 bits"),
        pytest.param(np.random.default_rng(1).integers(0, 2**40, 5000), id="anywhere"),
    ],
)
def test_long_columns_come_back_whatever_their_steps_are(numbers: np.ndarray) -> None:
    waiting = WaitingColumns(job_id=np.arange(5000), decision=[0] * 5000, ahead_gpus=numbers)

    again = decode_plan(encode_plan(Plan(waiting=waiting)))

    assert again.waiting.ahead_gpus.tolist() == numbers.tolist()


def test_numbers_of_jobs_that_follow_each_other_take_next_to_nothing() -> None:
    count = 100_000
    waiting = WaitingColumns(job_id=np.arange(10**9, 10**9 + count), decision=[0] * count)

    assert len(encode_plan(Plan(waiting=waiting))) < 2000
