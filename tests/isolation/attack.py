"""Runs as a job, and tries whatever a stranger's job must not be able to do; prints what came of each attempt."""

import ctypes
import json
import os
import signal
import socket
import sys
import time

about = json.loads(sys.argv[1])
pid, portal, state, outside = about["pid"], about["portal"], about["state"], about["outside"]
libc = ctypes.CDLL(None, use_errno=True)
said = {}


def read(path, at=0):
    with open(path, "rb") as file:
        if at:
            file.seek(at)
        return "GOT " + file.read(200).decode(errors="replace")


def write(path):
    with open(path, "w") as file:
        file.write("written by a job")
    return "GOT written"


def names(path):
    return "GOT " + ",".join(sorted(os.listdir(path))[:20])


def memory():
    with open(f"/proc/{pid}/maps") as maps:
        start = int(maps.readline().split("-")[0], 16)
    return read(f"/proc/{pid}/mem", start)


def attach():
    if libc.ptrace(16, pid, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    return "GOT attached"


def send(number):
    os.kill(pid, number)
    return "GOT sent"


def speak_to_the_shim():
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(1)
        link.connect(f"{state}/keeper.sock")
        order = {
            "key": "9-1", "folder": f"{state}/tasks/9-1", "cwd": "/", "script": "", "env": {}, "limit_seconds": None,
            "argv": ["/bin/sh", "-c", f"echo > {outside}/by-the-shim"], "grace_seconds": 1, "meta": {}, "user": "root",
        }  # fmt: skip
        link.sendall(json.dumps({"op": "start", "tasks": [order]}).encode() + b"\n")
        answer = link.recv(1000)
        if not answer:
            raise ConnectionError("hung up")
        return "GOT " + answer.decode()


def abstract_socket():
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(1)
        link.connect(about["abstract"])
        return "GOT connected"


def become_root():
    os.setuid(0)
    return "GOT root"


def mount():
    if libc.mount(b"tmpfs", b"/etc", b"tmpfs", 0, None) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    return "GOT mounted"


def from_the_file_of(name, path):
    with open(path) as file:
        return "GOT " + name + file.read(100)


ATTEMPTS = {
    "the portal's secret key": lambda: read(f"{portal}/secret_key"),
    "the database's password": lambda: read(f"{portal}/postgres_password"),
    "the servers' passwords": lambda: read(f"{portal}/servers.json"),
    "the portal's folder": lambda: names(portal),
    "the agent's identity": lambda: read(f"{state}/identity.json"),
    "the agent's journal": lambda: read(f"{state}/journal.jsonl"),
    "the shim's key": lambda: read(f"{state}/keeper.key"),
    "the shim": speak_to_the_shim,
    "the names of other tasks": lambda: names(f"{state}/tasks").replace("2-1", "").replace("GOT ", "GOT "),
    "another task's files": lambda: read(f"{state}/tasks/1-1/work/secret"),
    "another task's output": lambda: read(f"{state}/tasks/1-1/stdout"),
    "another task's status file": lambda: read(f"{state}/guards/1-1"),
    "another's environment": lambda: read(f"/proc/{pid}/environ"),
    "another's memory": memory,
    "another's working folder": lambda: names(f"/proc/{pid}/cwd"),
    "tracing another": attach,
    "finding another by a signal": lambda: send(0),
    "ending another": lambda: send(signal.SIGTERM),
    "an abstract socket": abstract_socket,
    "the system's passwords": lambda: read("/etc/shadow"),
    "writing the system": lambda: write("/etc/written-by-a-job"),
    "writing elsewhere": lambda: write(f"{outside}/written"),
    "becoming root": become_root,
    "mounting": mount,
}
for name, attempt in ATTEMPTS.items():
    try:
        said[name] = attempt()
    except (OSError, ValueError) as error:
        said[name] = f"refused: {error}"
said["tmp"] = ""
try:
    with open(os.environ["TMPDIR"] + "/mine" if "TMPDIR" in os.environ else "/tmp/mine", "w") as file:
        file.write("mine")
    said["tmp"] = "written"
except OSError as error:
    said["tmp"] = str(error)
with open("mine", "w") as file:
    file.write("mine")
said["account"] = str(os.getuid())
said["groups"] = str(os.getgroups())
said["umask"] = oct(os.umask(0))
said["session"] = str(os.getsid(0) == os.getpid())
time.sleep(0)
json.dump(said, sys.stdout)
