"""Trains a line through points by gradient descent, and goes on from its last step after any interruption.

Plain Python, no framework. Muster asks for a checkpoint with SIGUSR1, and names two places in the environment:
MUSTER_CHECKPOINT_DIR, where checkpoints go, and MUSTER_RESTORE_FROM, the one to go on from (empty at the beginning).
"""

import json
import os
import signal
import sys
import time

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
SECONDS_A_STEP = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05
POINTS = [(x, 3.0 * x + 1.0) for x in (-1.0, -0.5, 0.0, 0.5, 1.0)]

asked = False


def note_request(number, frame):
    """Only note it: a checkpoint is written between two steps, never in the middle of one."""
    global asked
    asked = True


def load():
    """The state to begin with: that of the checkpoint, or a new one."""
    path = os.environ.get("MUSTER_RESTORE_FROM")
    if not path:
        return {"step": 0, "slope": 0.0, "offset": 0.0}
    with open(os.path.join(path, "state.json")) as file:
        return json.load(file)


def save(state):
    """Write a checkpoint, and then the empty file beside it that says it is finished."""
    path = os.path.join(os.environ["MUSTER_CHECKPOINT_DIR"], f"step-{state['step']}")
    os.makedirs(path)
    with open(os.path.join(path, "state.json"), "w") as file:
        json.dump(state, file)
    open(path + ".done", "w").close()


def train_one_step(state):
    slope, offset = state["slope"], state["offset"]
    errors = [(slope * x + offset - y, x) for x, y in POINTS]
    state["slope"] -= 0.1 * sum(error * x for error, x in errors) / len(POINTS)
    state["offset"] -= 0.1 * sum(error for error, _ in errors) / len(POINTS)
    state["step"] += 1


signal.signal(signal.SIGUSR1, note_request)
state = load()
print(f"begin at step {state['step']}", flush=True)
while state["step"] < STEPS:
    train_one_step(state)
    time.sleep(SECONDS_A_STEP)
    if asked:
        asked = False
        save(state)
        print(f"saved step {state['step']}", flush=True)
print(f"done at step {state['step']}: y = {state['slope']:.6f} x + {state['offset']:.6f}")
