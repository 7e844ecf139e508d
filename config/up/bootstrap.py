"""Makes .venv and keeps it as the lock file says; the only module that runs before anything is installed."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
VENV = CHECKOUT / ".venv"
LOCKS = {"runtime": ["requirements.txt"], "development": ["requirements-dev.txt", "requirements.txt"]}
OLDEST = (3, 11)
TOLD_EVERY = 25


def main(arguments: list[str]) -> int:
    kind = arguments[0] if arguments else "runtime"
    if kind not in LOCKS:
        print(f"Say one of: {', '.join(LOCKS)}", file=sys.stderr)
        return 2
    if sys.version_info < OLDEST:
        return refuse(
            f"Muster needs Python {OLDEST[0]}.{OLDEST[1]} or newer, and this is {sys.version.split()[0]}.",
            "Name a newer one: make PYTHON=python3.12 run",
        )
    VENV.mkdir(exist_ok=True)
    with (VENV / ".muster-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once: the second finds it done
        return make_as_locked(kind)


def make_as_locked(kind: str) -> int:
    # The development environment can do all that the runtime one can.
    wanted = [stamp(name) for name in (kind, "development")]
    if works() and any(file.exists() for file in wanted):
        return 0
    started = time.monotonic()
    if not works() and (code := make_venv()):
        return code
    for old in VENV.glob(".muster-installed-*"):
        old.unlink()
    if code := install(CHECKOUT / LOCKS[kind][0]):
        return code
    stamp(kind).touch()
    print(f"Installed into {VENV} in {time.monotonic() - started:.0f} s.", flush=True)
    return 0


def stamp(kind: str) -> Path:
    """The file that says these locks are installed; another lock has another name."""
    content = b"".join((CHECKOUT / name).read_bytes() for name in LOCKS[kind])
    return VENV / f".muster-installed-{kind}-{hashlib.sha256(content).hexdigest()[:16]}"


def works() -> bool:
    """Whether the environment's Python starts, is new enough, and has pip."""
    code = f"import sys, pip; sys.exit(sys.version_info < {OLDEST})"
    try:
        python = str(VENV / "bin" / "python")
        return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def make_venv() -> int:
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return refuse(
            f"This Python ({sys.executable}) cannot make virtual environments: it lacks ensurepip.",
            f"On Debian and Ubuntu: apt install python{version}-venv",
        )
    print(f"Making {VENV} with Python {sys.version.split()[0]} ...", flush=True)
    for part in ("bin", "lib", "lib64", "include", "pyvenv.cfg"):
        path = VENV / part
        if path.is_symlink() or path.is_file():
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)
    command = [sys.executable, "-m", "venv", str(VENV)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return refuse(f"Python could not make {VENV}:", (done.stdout + done.stderr).strip())
    return 0


def install(lock: Path) -> int:
    total = sum(
        1 for line in lock.read_text().splitlines() if "==" in line and not line.startswith((" ", "#"))
    )
    print(f"Installing up to {total} packages from {lock.name} (about half a minute) ...", flush=True)
    log = VENV / "muster-install.log"
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--require-hashes"]
    command += ["--no-input", "--progress-bar", "off", "-r", str(lock)]
    with (
        log.open("w") as output,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        ) as pip,
    ):
        assert pip.stdout is not None
        found = 0
        for line in pip.stdout:
            output.write(line)
            if line.startswith(("Collecting ", "Requirement already satisfied")):
                found += 1
                if found % TOLD_EVERY == 0:
                    print(f"  {found} packages", flush=True)
            elif line.startswith("Installing collected"):
                print("  unpacking", flush=True)
    if pip.returncode:
        tail = "\n".join(log.read_text().splitlines()[-12:])
        return refuse(f"pip could not install {lock.name}. Its output {log} ends:", tail)
    return 0


def refuse(what: str, way_out: str) -> int:
    print(f"{what}\n{way_out}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
