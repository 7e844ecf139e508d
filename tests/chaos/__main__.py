"""`python -m tests.chaos`: one series on a portal of its own; exit code 1 when a promise is broken."""

from __future__ import annotations

import argparse
import sys
import time

from config.up.ports import free_port
from tests.chaos import victims
from tests.chaos.series import Series, table
from tests.support.stack import Stack, make_open_folder, scratch_state


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=72)
    parser.add_argument("--jobs", type=int, default=800)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--victims", default=",".join(victims.KINDS), help="kinds, separated by commas")
    parser.add_argument("--keep", action="store_true", help="keep the state folder, and say where it is")
    given = parser.parse_args()
    kinds = given.victims.split(",")
    if strange := sorted(set(kinds) - set(victims.KINDS)):
        parser.error(f"{', '.join(strange)}: choose from {', '.join(victims.KINDS)}")

    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", file=sys.stderr, flush=True)

    state = scratch_state("chaos")
    stack = Stack(
        state,
        ["--nodes", str(given.nodes), "--port", str(free_port())],
        open_folder=make_open_folder("chaos-jobs"),
    )
    try:
        stack.start()
        series = Series(stack, seed=given.seed, kills=given.kills, jobs=given.jobs, kinds=kinds, say=say)
        outcome = series.run()
    finally:
        stack.stop()
        if given.keep:
            say(f"kept {state}")
        else:
            stack.remove_folders()
    print("\n".join(table(outcome)))
    return 0 if outcome.holds else 1


if __name__ == "__main__":
    sys.exit(main())
