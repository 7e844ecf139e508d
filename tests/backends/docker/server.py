"""A real Docker daemon of its own: its socket and its files are in one folder, and nothing else of the machine changes.

It has no network of its own (`--bridge none`) and writes no firewall rules. Its one image has a shell and the programs
of busybox.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path

IMAGE = "muster-test/busybox:1"
PROGRAMS = (
    "sh", "sleep", "echo", "cat", "true", "false", "kill", "env", "seq", "head", "tail", "dd", "test", "[", "date",
    "ls", "mkdir", "touch", "rm", "wc", "id", "trap",
)  # fmt: skip


class DockerUnavailable(Exception):
    """Why there can be no Docker daemon here."""


def missing() -> str:
    """Why none can be started; empty where one can."""
    if os.geteuid() != 0:
        return "a Docker daemon of its own needs root"
    lacking = [name for name in ("dockerd", "docker-init", "busybox") if shutil.which(name) is None]
    return f"{' and '.join(lacking)} not found (packages docker.io and busybox-static)" if lacking else ""


def install() -> None:
    """Install what is missing, where there is apt; raises DockerUnavailable."""
    if not missing():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise DockerUnavailable(missing())
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", "docker.io", "busybox-static"],
    ):
        done = subprocess.run(["apt-get", *arguments], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise DockerUnavailable(f"apt-get {arguments[0]}: {done.stderr[-300:]}")


class DockerServer:
    def __init__(self, folder: Path, *, patience_seconds: float) -> None:
        self._folder, self._patience = folder, patience_seconds
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._folder}/docker.sock"

    def start(self) -> None:
        """Raises DockerUnavailable."""
        if reason := missing():
            raise DockerUnavailable(reason)
        log = self._folder / "log"
        # Of one that was killed: its process may still be there, ended and not reaped, and dockerd would wait for it.
        (self._folder / "exec/containerd/containerd.pid").unlink(missing_ok=True)
        hook = self._folder / "programs" / "nvidia-container-runtime-hook"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\n")
        hook.chmod(0o755)
        # With this program in its path Docker takes requests for GPUs, and tells it which; a real one would add them.
        environment = {**os.environ, "PATH": f"{hook.parent}:{os.environ['PATH']}"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    "dockerd", "--host", self.url, "--data-root", f"{self._folder}/data",
                    "--exec-root", f"{self._folder}/exec", "--pidfile", f"{self._folder}/pid",
                    "--iptables=false", "--ip6tables=false", "--bridge=none", "--live-restore",
                    "--containerd-namespace", f"muster-{self._folder.name}",
                ],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment,
                start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + self._patience
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise DockerUnavailable(f"dockerd does not answer: {log.read_text()[-500:]}")
            time.sleep(0.1)
        if IMAGE not in self._docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}"):
            self._docker("import", "-", IMAGE, stdin=_image())

    def _answers(self) -> bool:
        try:
            self._docker("version")
        except subprocess.CalledProcessError:
            return False
        return True

    def _docker(self, *arguments: str, stdin: bytes = b"") -> str:
        done = subprocess.run(
            ["docker", "--host", self.url, *arguments], input=stdin, capture_output=True, check=True
        )
        return done.stdout.decode()

    def exec(self, container: str, command: str) -> None:
        """Run a shell command in a container."""
        self._docker("exec", container, "sh", "-c", command)

    def remove(self, container: str) -> None:
        """As somebody else would, with the container's processes."""
        self._docker("rm", "--force", container)

    def containers(self) -> list[str]:
        """Names of all containers, those that have ended too."""
        return self._docker("ps", "--all", "--format", "{{.Names}}").split()

    def inspect(self, container: str, what: str) -> str:
        """Facts of a container, as `docker inspect --format` has them."""
        return self._docker("inspect", "--format", what, container).strip()

    def run(self, name: str, *arguments: str) -> None:
        """A container that is not Muster's."""
        self._docker("run", "--detach", "--name", name, "--network", "none", *arguments)

    def kill(self) -> None:
        """Kill the daemon, and wait until its containerd has ended with it; containers go on."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        until = time.monotonic() + self._patience
        while self._has_containerd() and time.monotonic() < until:
            time.sleep(0.1)

    def _has_containerd(self) -> bool:
        config = f"{self._folder}/exec/containerd/containerd.toml".encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if config in path.read_bytes().split(b"\0"):
                    return True
            except OSError:
                continue  # it has ended
        return False

    def stop(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            for name in self.containers():
                self.remove(name)
            self._process.terminate()
            self._process.wait(timeout=30)
        for mount in reversed(_mounts_below(str(self._folder))):
            subprocess.run(["umount", "--lazy", mount], check=False)


def _mounts_below(folder: str) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[1].startswith(folder + "/")]


def _image() -> bytes:
    busybox = shutil.which("busybox")
    assert busybox is not None
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for folder in ("bin", "tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(entry)
        archive.add(busybox, "bin/busybox")
        for name in PROGRAMS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return data.getvalue()


if __name__ == "__main__":
    install()
