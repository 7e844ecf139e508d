"""`python -m scheduler.agent.keeper`: how agents of earlier versions start the shim.

An agent that still runs while Muster is upgraded under it starts its next shim by this name.
"""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("scheduler.agent.shim", run_name="__main__", alter_sys=True)
