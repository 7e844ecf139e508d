"""Units of quotas kept outside Muster, and the telling apart of our edits and others'."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.core.external_limits import Bound, after_writing, compare, strictest
from quotas.core.units import k8s, slurm

BOUNDS = [
    Bound("cpu_millis", 100_000),
    Bound("memory_mib", 500 * 1024),
    Bound("gpu_millis", 10_000),
    Bound("running_jobs", 40),
]


def test_slurm_keeps_what_the_design_says() -> None:
    mapped = slurm.values_of(BOUNDS)

    assert mapped.values == {"cpu": 100, "mem": 512_000, "gres/gpu": 10, "jobs": 40}
    assert slurm.show("mem", mapped.values["mem"]) == "500G"
    assert slurm.format_tres({"cpu": 100, "mem": 512_000, "gres/gpu": None}) == (
        "cpu=100,gres/gpu=-1,mem=512000M"
    )


def test_kubernetes_keeps_what_the_design_says() -> None:
    mapped = k8s.values_of(BOUNDS)

    assert {key: k8s.show(key, value) for key, value in mapped.values.items()} == {
        "requests.cpu": "100",
        "requests.memory": "500Gi",
        "requests.nvidia.com/gpu": "10",
        "count/jobs.batch": "40",
    }


def test_lines_that_a_provider_has_no_word_for_are_named() -> None:
    h100, batch = Bound("gpu_millis", 2000, gpu_model="NVIDIA H100"), Bound("cpu_millis", 1, job_type="batch")

    assert slurm.values_of([h100, batch, Bound("storage_mib", 1)]) == slurm.Mapped(
        {"gres/gpu:nvidia_h100": 2}, ("cpu_millis batch", "storage_mib")
    )
    assert k8s.values_of([h100, batch, Bound("storage_mib", 1)]) == k8s.Mapped(
        {"requests.ephemeral-storage": 1}, ("gpu_millis NVIDIA H100", "cpu_millis batch")
    )


def test_a_bound_outside_is_never_tighter_than_the_quota() -> None:
    assert slurm.values_of([Bound("cpu_millis", 1500), Bound("gpu_millis", 500)]).values == {
        "cpu": 2,
        "gres/gpu": 1,
    }
    assert k8s.values_of([Bound("gpu_millis", 500)]).values == {"requests.nvidia.com/gpu": 1}
    assert (
        k8s.show("requests.cpu", k8s.values_of([Bound("cpu_millis", 1500)]).values["requests.cpu"]) == "1500m"
    )


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("mem=500G", 512_000),
        ("mem=62.50G", 64_000),
        ("mem=4096", 4096),
        ("mem=1T", 2**20),
        ("mem=64001M", 64_001),
    ],
)
def test_memory_of_slurm_is_read_in_mib(text: str, mib: int) -> None:
    assert slurm.parse_tres(text) == {"mem": mib}


@pytest.mark.parametrize("text", ["cpu", "cpu=", "cpu=x", "mem=1.5.2G", "cpu=-1", "mem=4Q"])
def test_what_slurm_never_writes_is_not_guessed_at(text: str) -> None:
    with pytest.raises(slurm.BadTres):
        slurm.parse_tres(text)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("requests.cpu", "2", 2000),
        ("requests.cpu", "1500m", 1500),
        ("requests.cpu", "0.5", 500),
        ("requests.cpu", "2e3", 2_000_000),
        ("requests.cpu", "1k", 1_000_000),
        ("requests.memory", "500Gi", 512_000),
        ("requests.memory", "500G", 476_838),  # decimal, rounded up to whole MiB
        ("requests.memory", "1Ti", 2**20),
        ("requests.memory", "134217728", 128),
        ("requests.memory", "128974848000m", 123),
        ("requests.nvidia.com/gpu", "4", 4),
    ],
)
def test_quantities_of_kubernetes_are_read_in_our_units(key: str, text: str, value: int) -> None:
    assert k8s.parse(key, text) == value


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1gi", "-1", "1e", "1Kii", "١"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(k8s.BadQuantity):
        k8s.parse("requests.memory", text)


@given(st.integers(0, 2**40))
def test_amounts_survive_the_way_there_and_back(amount: int) -> None:
    for key in (k8s.CPU, k8s.MEMORY, k8s.GPU):
        assert k8s.parse(key, k8s.show(key, amount)) == amount
    text = slurm.format_tres({"cpu": amount, "mem": amount, "gres/gpu:a100": amount})
    assert slurm.parse_tres(text) == {"cpu": amount, "mem": amount, "gres/gpu:a100": amount}


def test_the_strictest_bound_of_a_line_counts() -> None:
    assert strictest(8, None, 3) == 8
    assert strictest(8, 4, 2) == 6
    assert strictest(None, 4, None) is None


# ---------------------------------------------------------------- whose change is whose


VALUES = st.dictionaries(st.sampled_from(["cpu", "mem", "gres/gpu", "jobs", "user/mia"]), st.integers(1, 4))


def test_an_edit_of_ours_is_written_and_one_of_theirs_is_shown() -> None:
    result = compare({"cpu": 8, "mem": 100}, {"cpu": 6, "mem": 100}, {"cpu": 6, "mem": 50, "jobs": 3})

    assert result.to_write == {"cpu": 8}
    assert [(d.key, d.here, d.there) for d in result.drift] == [("jobs", None, 3), ("mem", 100, 50)]
    assert not result.overwritten


def test_a_line_that_both_changed_goes_by_ours_and_is_told() -> None:
    result = compare({"cpu": 8}, {"cpu": 6}, {"cpu": 99})

    assert result.to_write == {"cpu": 8}
    assert [(d.key, d.here, d.there) for d in result.overwritten] == [("cpu", 8, 99)]


@given(VALUES, st.none() | VALUES, VALUES)
def test_every_difference_is_either_ours_or_theirs(wanted, written, there) -> None:  # type: ignore[no-untyped-def]
    result = compare(wanted, written, there)
    after = after_writing(there, result.to_write)
    drifted = {d.key for d in result.drift}

    assert {key for key in wanted.keys() | after.keys() if wanted.get(key) != after.get(key)} == drifted
    assert not drifted & result.to_write.keys()
    # Nothing that somebody else changed is replaced, but for lines that were changed here as well.
    for key in result.to_write:
        assert written is None or wanted.get(key) != written.get(key)
    # What was found and not ours to change stays as it is, however often we look.
    again = compare(wanted, wanted, after)
    assert not again.to_write
    assert {d.key for d in again.drift} == drifted


@given(VALUES, st.none() | VALUES, VALUES)
def test_a_repair_leaves_no_difference(wanted, written, there) -> None:  # type: ignore[no-untyped-def]
    result = compare(wanted, written, there, repair=True)

    assert after_writing(there, result.to_write) == wanted
    assert not result.drift
