"""Memory that a process frees stays with it where that was asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Page faults of thirty rounds that allocate, fill and free the same eight blocks of 4 MiB.
FAULTS = """
import resource, sys
from infra.machine.freed_memory import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit(3)
def rounds(count):
    for _ in range(count):
        [bytearray(4 * 1024 * 1024) for _ in range(8)]
rounds(10)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
rounds(30)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(which: str) -> int:
    answer = subprocess.run(
        [sys.executable, "-c", FAULTS, which], capture_output=True, text=True, timeout=60, check=False
    )
    if answer.returncode == 3:
        pytest.skip("this C library has no mallopt")
    assert answer.returncode == 0, answer.stderr
    return int(answer.stdout)


def test_a_round_that_allocates_the_same_again_faults_no_page_in() -> None:
    assert faults("kept") < 100 < faults("given back")
