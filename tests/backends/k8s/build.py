"""kube-apiserver and kube-controller-manager, built from Debian's own source package, kept for the next run.

    python3 tests/backends/k8s/build.py    # as root on Debian; minutes the first time, nothing after that

Debian ships kubectl only, but its source package holds the whole of Kubernetes with everything it needs to be
built without a network. Two programs (220 MB) are kept under ~/.cache/muster; the source is thrown away.
CI does not run this (about 10 minutes of processor): there these tests run where it was run before, else skip.
Only the standard library is used, so that it can run before anything else is there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "1.20.2"
#: A new number builds everything again.
RECIPE = 1
PACKAGES = (
    "etcd-server", "golang-go", "golang-github-modern-go-reflect2-dev", "dpkg-dev", "make", "rsync", "jq",
)  # fmt: skip
PROGRAMS = ("kube-apiserver", "kube-controller-manager")
#: What is in the source package is older and faults at random with the Go that builds it here.
REFLECT = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")


class K8sUnavailable(Exception):
    """There can be no Kubernetes here; the text says why and what would help."""


def kept() -> Path:
    """The folder of the programs, whether they are there or not."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "muster" / f"kubernetes-{VERSION}-{RECIPE}"


def program(name: str) -> str:
    """Its path; etcd is Debian's own."""
    return shutil.which("etcd") or "" if name == "etcd" else str(kept() / name)


def missing() -> str:
    """Why a Kubernetes cannot be started here, or nothing."""
    absent = [name for name in ("etcd", *PROGRAMS) if not os.access(program(name) or "/nowhere", os.X_OK)]
    if absent:
        return f"{', '.join(absent)} missing: run `python3 tests/backends/k8s/build.py` as root on Debian"
    return ""


def build() -> None:
    """Install the packages, build, keep; does nothing when all is there."""
    if not missing():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise K8sUnavailable("Kubernetes is not built yet, and only root on Debian can build it here")
    kept().parent.mkdir(parents=True, exist_ok=True)
    with (kept().parent / "kubernetes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not missing():
            return  # another run has built it meanwhile
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        _do("apt-get", "update", "-qq", **quiet)
        _do("apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES, **quiet)
        if missing():
            with tempfile.TemporaryDirectory(prefix="muster-k8s-build-") as folder:
                _build_in(Path(folder))


def _build_in(folder: Path) -> None:
    print(f"Building Kubernetes {VERSION} (some minutes, once on a machine) ...", flush=True)
    _fetch_source(folder)
    source = folder / "go/src/k8s.io/kubernetes"
    vendored = source / "vendor/github.com/modern-go/reflect2"
    for old in (*vendored.glob("*.go"), *vendored.glob("*.s")):
        old.unlink()
    for new in (*REFLECT.glob("*.go"), *REFLECT.glob("*.s")):
        shutil.copy(new, vendored)
    go = {
        "GOPATH": str(folder / "go"),
        "GO111MODULE": "off",
        "CGO_ENABLED": "0",
        "GOCACHE": str(folder / "gocache"),
        "GOFLAGS": "",
        "HOME": str(folder),
    }
    _do("make", "generated_files", cwd=source, **go)
    flags = ["-s", "-w"]
    for package in ("component-base/version", "client-go/pkg/version"):
        for name, value in (("gitVersion", f"v{VERSION}"), ("gitMajor", "1"), ("gitMinor", "20")):
            flags.append(f"-X k8s.io/kubernetes/vendor/k8s.io/{package}.{name}={value}")
    made = folder / "bin"
    made.mkdir()
    _do(
        "go", "build", "-ldflags", " ".join(flags), "-o", f"{made}/", *(f"./cmd/{name}" for name in PROGRAMS),
        cwd=source, **go,
    )  # fmt: skip
    kept().mkdir(exist_ok=True)
    for name in PROGRAMS:
        whole = kept() / f"{name}.new"
        shutil.copy(made / name, whole)
        whole.replace(kept() / name)


def _fetch_source(folder: Path) -> None:
    """From the same places that the machine's packages come from, without touching its lists."""
    lists = folder / "lists"
    lists.mkdir()
    places = folder / "places.list"
    known = Path("/etc/apt/sources.list.d/debian.sources")
    if known.exists():
        places = folder / "places.sources"
        places.write_text(
            "".join(
                "Types: deb-src\n" if line.startswith("Types:") else line
                for line in known.read_text().splitlines(keepends=True)
            )
        )
    else:
        places.write_text(
            "".join(
                line.replace("deb ", "deb-src ", 1)
                for line in Path("/etc/apt/sources.list").read_text().splitlines(keepends=True)
                if line.startswith("deb ")
            )
        )
    options = [
        "-o", f"Dir::Etc::SourceList={places}", "-o", "Dir::Etc::SourceParts=/dev/null",
        "-o", f"Dir::State::Lists={lists}",
    ]  # fmt: skip
    _do("apt-get", *options, "update", "-qq", cwd=folder)
    _do("apt-get", *options, "source", "--download-only", "-qq", "kubernetes", cwd=folder)
    described = sorted(folder.glob("kubernetes_*.dsc"))
    if not described or f"really{VERSION}-" not in described[-1].name:
        raise K8sUnavailable(
            f"this Debian's source package is {[path.name for path in described]}, not {VERSION}"
        )
    (folder / "go/src/k8s.io").mkdir(parents=True)
    _do("dpkg-source", "-x", "--no-check", described[-1].name, "go/src/k8s.io/kubernetes", cwd=folder)


def _do(*command: str, cwd: Path | None = None, **environment: str) -> None:
    done = subprocess.run(command, env=os.environ | environment, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise K8sUnavailable(
            f"{' '.join(command[:3])} failed: {done.stdout[-600:].strip()} {done.stderr[-600:].strip()}"
        )


if __name__ == "__main__":
    try:
        build()
    except K8sUnavailable as problem:
        print(problem, file=sys.stderr)
        raise SystemExit(1) from None
