"""`python -m tests.chaos.minutes 20`: a campaign on a portal of its own; exit code 1 where a promise is broken."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from config.up.ports import free_port
from tests.chaos import campaign
from tests.chaos.campaign import Campaign
from tests.chaos.fleet import Fleet
from tests.chaos.verdict import lines, verdict
from tests.support.stack import Stack, make_open_folder, scratch_state

#: Of a minute.
FAULTS: Final = 11
JOBS: Final = 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.minutes", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, help=f"default: {JOBS} a minute")
    parser.add_argument("--faults", type=int, help=f"default: {FAULTS} a minute")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--keep", action="store_true", help="keep all files, and say where they are")
    given = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", file=sys.stderr, flush=True)

    if os.geteuid() != 0:
        say("No full disk: only root can mount a small one for a node.")
    folder = Path(tempfile.mkdtemp(prefix="muster-chaos-files-"))
    state = scratch_state("chaos")
    stack = Stack(
        state,
        ["--nodes", "0", "--port", str(free_port())],
        env={
            "MUSTER_NODE_SILENT_SECONDS": str(campaign.SILENT_SECONDS),
            "MUSTER_NODE_LOST_SECONDS": str(campaign.LOST_SECONDS),
            "MUSTER_SYNC_HOLD_SECONDS": str(campaign.HOLD_SECONDS),
        },
        open_folder=make_open_folder("chaos-jobs"),
    )
    fleet = Fleet(stack, given.nodes, given.seed)
    run = Campaign(
        stack, fleet, folder, given.seed, given.minutes,
        jobs=given.jobs or round(JOBS * given.minutes), faults=given.faults or round(FAULTS * given.minutes), say=say,
    )  # fmt: skip
    try:
        stack.start()
        fleet.start()
        run.run()
        assert stack.open_folder is not None
        broken = verdict(folder, stack.open_folder)
    finally:
        fleet.stop()
        stack.stop()
        if given.keep:
            say(f"kept {folder}, {state} and {stack.open_folder}")
        else:
            stack.remove_folders()
            shutil.rmtree(folder, ignore_errors=True)
    for name, count in sorted(run.counts.items()):
        print(f"{count:5}  {name}")
    faults = sum(run.counts.values()) - run.counts["requests that were sent again"]
    print(
        f"\nseed {given.seed}: {faults} faults, {run.taken:,} jobs in {given.minutes:g} min; "
        f"{fleet.restarts} agents started again, {sum(m.proxy.doubled for m in fleet.members):,} messages doubled, "
        f"{sum(m.proxy.reordered for m in fleet.members):,} reordered; no step by hand"
    )
    print("\n".join(lines(broken)))
    return 1 if any(broken.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
