"""The jobs that are run on a GPU: one that looks, one that works, one that clings to what it has."""

from __future__ import annotations

from typing import Final

LOOK: Final = """
import json, os
import torch
names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "MUSTER_GPU_UUIDS", "SLURM_JOB_GPUS")
facts = {name: os.environ.get(name) for name in names}
facts["count"] = torch.cuda.device_count()
if facts["count"]:
    device = torch.cuda.get_device_properties(0)
    facts |= {"name": device.name, "uuid": "GPU-" + str(device.uuid), "mib": device.total_memory >> 20}
print("FACTS " + json.dumps(facts), flush=True)
"""

_WORK: Final = """
import time
n, seconds, duty = 8192, @SECONDS@, @DUTY@
a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
c = a @ b
torch.cuda.synchronize()
print("BEGIN", flush=True)
begin = time.time()
done = 0
busy = 0.0
while time.time() < begin + seconds:
    at = time.time()
    for _ in range(20):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize()
    done += 20
    spent = time.time() - at
    busy += spent
    time.sleep(spent * (1 - duty) / duty)
free, total = torch.cuda.mem_get_info()
facts = {"tflops": done * 2 * n**3 / seconds / 1e12, "busy_seconds": busy, "used_mib": (total - free) >> 20}
print("DONE " + json.dumps(facts), flush=True)
"""

_CHILD: Final = """
import signal, time
import torch
signal.signal(signal.SIGTERM, signal.SIG_IGN)
x = torch.empty(5 * 2**30, dtype=torch.uint8, device="cuda")
print("CHILD", flush=True)
time.sleep(600.25)
"""

#: Does not end when it is asked to, and has two children that do not either, one in a session of its own.
CLING: Final = (
    LOOK
    + f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
x = torch.empty(20 * 2**30, dtype=torch.uint8, device="cuda")
child = {_CHILD!r}
subprocess.Popen([sys.executable, "-c", child])
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
print("HOLDING", flush=True)
time.sleep(600.25)
"""
)

#: Holds a GiB without being part of any job.
STRANGER: Final = """
import time
import torch
x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
print("up", flush=True)
time.sleep(300)
"""

#: A job without GPUs that takes one all the same.
SNEAK: Final = (
    "import os\nos.environ.pop('CUDA_VISIBLE_DEVICES')\n"
    + LOOK
    + """
import time
x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
print("UP", flush=True)
time.sleep(60)
"""
)

#: Fails as programs do: it reads where it has no memory.
FAULT: Final = (
    LOOK
    + """
x = torch.zeros(10, device="cuda")
print(x[torch.tensor([5_000_000], device="cuda")])
torch.cuda.synchronize()
"""
)


def work(seconds: float, duty: float = 1.0) -> str:
    """Matrix products for so long, and of that time so much."""
    return LOOK + _WORK.replace("@SECONDS@", str(seconds)).replace("@DUTY@", str(duty))
