"""A real Kubernetes control plane on this machine, for tests: etcd, kube-apiserver, kube-controller-manager.

    python3 tests/backends/k8s/build.py             # once, as root on Debian
    python3 tests/backends/k8s/server.py /tmp/k8s   # start, print KUBECONFIG, stop at Ctrl-C

Its own folder, its own ports, on 127.0.0.1 only. There are no nodes: pods are admitted and counted, and none runs.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.backends.k8s.build import K8sUnavailable, missing, program
from tests.backends.slurm.server import die_with_parent, free_ports

#: Nothing runs here that would need more: who empties namespaces, and who counts what quotas bound.
CONTROLLERS = ("namespace", "resourcequota")


class K8sServer:
    """Each program is a child of this process, and ends with it."""

    def __init__(self, folder: Path, *, patience_seconds: float = 90) -> None:
        self.folder = folder
        self.patience_seconds = patience_seconds
        self.etcd_port, self.peer_port, self.api_port, self.manager_port = free_ports(4)
        self.token, self.weak_token = secrets.token_hex(16), secrets.token_hex(16)
        self._children: list[tuple[str, subprocess.Popen[bytes]]] = []

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "certs/apiserver.crt"

    @property
    def kubeconfig(self) -> Path:
        """For one who may do everything."""
        return self.folder / "kubeconfig"

    def start(self) -> None:
        if reason := missing():
            raise K8sUnavailable(reason)
        try:
            self._write_files()
            self._start_all()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """The youngest first; what does not end by itself in a while is killed."""
        for _, child in reversed(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait(15)
        self._children.clear()

    @contextlib.contextmanager
    def paused(self, name: str):  # type: ignore[no-untyped-def]
        """Freeze one program: it neither answers nor refuses, as on an overloaded machine."""
        child = next(child for known, child in self._children if known == name)
        os.killpg(child.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(child.pid, signal.SIGCONT)

    def _start_all(self) -> None:
        etcd, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.peer_port}"
        self._launch(
            "etcd", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
        )  # fmt: skip
        self._launch(
            "kube-apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1",
            f"--secure-port={self.api_port}", f"--cert-dir={self.folder / 'certs'}",
            "--service-cluster-ip-range=10.96.0.0/24", "--endpoint-reconciler-type=none",
            "--authorization-mode=RBAC", f"--token-auth-file={self.folder / 'tokens.csv'}",
            f"--service-account-key-file={self.folder / 'sa.pub'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--disable-admission-plugins=ServiceAccount",
        )  # fmt: skip
        self._wait("kube-apiserver", self._is_ready)
        self._write_kubeconfig()
        self._launch(
            "kube-controller-manager", f"--kubeconfig={self.kubeconfig}", "--bind-address=127.0.0.1",
            f"--secure-port={self.manager_port}", f"--cert-dir={self.folder / 'certs-manager'}", "--port=0",
            "--leader-elect=false", f"--controllers={','.join(CONTROLLERS)}",
        )  # fmt: skip

    def _is_ready(self) -> bool:
        if not self.ca_file.exists():
            return False
        request = urllib.request.Request(
            f"{self.url}/readyz", headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            trust = ssl.create_default_context(cafile=str(self.ca_file))
            with urllib.request.urlopen(request, timeout=5, context=trust) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def _launch(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as out:
            child = subprocess.Popen(
                [program(name), *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                cwd=self.folder, start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        self._children.append((name, child))

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + self.patience_seconds
        while not ready():
            dead = [known for known, child in self._children if child.poll() is not None]
            if dead or time.monotonic() > until:
                said = [
                    f"{known}: {(self.folder / f'{known}.log').read_text(errors='replace')[-600:]}"
                    for known in dead or [name]
                ]
                raise K8sUnavailable(f"{name} did not come up: {' | '.join(said)}")
            time.sleep(0.1)

    def _write_files(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "tokens.csv").touch(mode=0o600)
        (self.folder / "tokens.csv").write_text(
            f"{self.token},admin,admin,system:masters\n{self.weak_token},portal,portal\n"
        )
        for command in (
            ["openssl", "genrsa", "-out", "sa.key", "2048"],
            ["openssl", "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"],
        ):
            subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def _write_kubeconfig(self) -> None:
        """JSON is YAML too."""
        trust = base64.b64encode(self.ca_file.read_bytes()).decode()
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [
                        {
                            "name": "here",
                            "cluster": {"server": self.url, "certificate-authority-data": trust},
                        }
                    ],
                    "users": [{"name": "admin", "user": {"token": self.token}}],
                    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
                    "current-context": "here",
                }
            )
        )


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    server = K8sServer(Path(sys.argv[1]).resolve())
    try:
        server.start()
    except K8sUnavailable as problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"export KUBECONFIG={server.kubeconfig}", flush=True)
    try:
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
