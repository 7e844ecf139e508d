"""What a cluster says of its Docker hosts (`Cluster.backend_settings`), checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from infra.errors import FieldProblem, InvalidInput

MAX_HOSTS: Final = 256
MAX_GPUS: Final = 64
MAX_MOUNTS: Final = 32
NETWORKS: Final = ("none", "bridge", "host")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,118}")
_URL: Final = re.compile(r"unix:///\S{1,200}|tcp://[A-Za-z0-9._:\[\]-]{1,200}")
_MOUNT: Final = re.compile(r"(/[^:,\0\n]*):(/[^:,\0\n]*)(?::(ro|rw))?")
_HOST_FIELDS: Final = ("name", "url", "tls", "cpus", "memory_mib", "gpus", "labels")
_FIELDS: Final = ("hosts", "network", "mounts")
#: What the settings of a cluster look like, for forms and errors.
EXAMPLE: Final = (
    '{"hosts": [{"name": "docker1", "url": "unix:///var/run/docker.sock", "gpus": ["A100-80GB"]}]}'
)


@dataclass(frozen=True, slots=True)
class DockerHost:
    """One host: the name of its node, where its API answers, and what the API does not say of it.

    `tls` is a folder with `ca.pem`, `cert.pem` and `key.pem`, as the variable DOCKER_CERT_PATH names it. `cpus` and
    `memory_mib` are what jobs may be given of the host; None = all that it has. `gpus` are the models of its GPUs in
    the order of their numbers.
    """

    name: str
    url: str
    tls: str = ""
    cpus: int | None = None
    memory_mib: int | None = None
    gpus: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """The hosts of a cluster, and what each of its containers gets: a network, and folders of the host.

    A mount is (path on the host, path in the container, "ro" or "rw").
    """

    hosts: tuple[DockerHost, ...]
    network: str = "bridge"
    mounts: tuple[tuple[str, str, str], ...] = ()


def read_docker_settings(data: Any) -> DockerSettings:
    """The settings of a cluster; raises InvalidInput that names every wrong field."""
    problems: list[FieldProblem] = []
    if not isinstance(data, Mapping) or not data:
        raise InvalidInput(
            message="A cluster of Docker hosts needs settings that name its hosts.",
            way_out=f"For example {EXAMPLE}",
        )
    problems += [FieldProblem(str(name)[:60], f"is unknown; there are {', '.join(_FIELDS)}")
                 for name in data if name not in _FIELDS]  # fmt: skip
    given = data.get("hosts")
    if not isinstance(given, list) or not 0 < len(given) <= MAX_HOSTS:
        problems.append(FieldProblem("hosts", f"has to be a list of 1 to {MAX_HOSTS} hosts"))
        given = []
    hosts = [_host(one, f"hosts/{number}", problems) for number, one in enumerate(given)]
    for what in ("name", "url"):
        values = [getattr(host, what) for host in hosts]
        if len(set(values)) < len(values):
            problems.append(FieldProblem("hosts", f"has two with the same {what}"))
    network = data.get("network", "bridge")
    if network not in NETWORKS:
        problems.append(FieldProblem("network", f"has to be one of {', '.join(NETWORKS)}"))
    mounts = _mounts(data.get("mounts", []), problems)
    if problems:
        raise InvalidInput(message="The settings of the Docker hosts cannot be used.", problems=problems[:50])
    return DockerSettings(tuple(hosts), str(network), mounts)


def _host(data: Any, at: str, problems: list[FieldProblem]) -> DockerHost:
    if not isinstance(data, Mapping):
        problems.append(FieldProblem(at, "has to be an object with name and url"))
        return DockerHost(at, at)
    problems += [FieldProblem(f"{at}/{str(name)[:60]}", f"is unknown; there are {', '.join(_HOST_FIELDS)}")
                 for name in data if name not in _HOST_FIELDS]  # fmt: skip
    url, tls = _api(data, at, problems)
    return DockerHost(
        _text_of(data, "name", _is_name, at, "a name of letters, digits, dots, - and _", problems),
        url,
        tls,
        cpus=_amount(data, "cpus", at, problems),
        memory_mib=_amount(data, "memory_mib", at, problems),
        gpus=_models(data, at, problems),
        labels=_labels(data, at, problems),
    )


def _api(data: Mapping[str, Any], at: str, problems: list[FieldProblem]) -> tuple[str, str]:
    """Where the API answers, and the folder of the certificate for it."""
    url = _text_of(data, "url", _is_url, at, "unix:///PATH or tcp://HOST:PORT", problems)
    tls = data.get("tls", "")
    if not isinstance(tls, str) or (tls and not tls.startswith("/")):
        problems.append(FieldProblem(f"{at}/tls", "has to be an absolute path"))
    elif url.startswith("tcp://") and not tls:
        problems.append(
            FieldProblem(f"{at}/tls", "has to name a folder with ca.pem, cert.pem and key.pem: over TCP, "
                         "who reaches the API of Docker has all rights on the host")
        )  # fmt: skip
    return url, str(tls)


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _is_url(text: str) -> bool:
    return _URL.fullmatch(text) is not None


def _text_of(
    data: Mapping[str, Any],
    name: str,
    fits: Callable[[str], bool],
    at: str,
    words: str,
    problems: list[FieldProblem],
) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not fits(value):
        problems.append(FieldProblem(f"{at}/{name}", f"has to be {words}"))
    return str(value)


def _models(data: Mapping[str, Any], at: str, problems: list[FieldProblem]) -> tuple[str, ...]:
    gpus = data.get("gpus", [])
    if not isinstance(gpus, list) or len(gpus) > MAX_GPUS or not all(_is_text(one) for one in gpus):
        problems.append(FieldProblem(f"{at}/gpus", f"has to be a list of at most {MAX_GPUS} models"))
        return ()
    return tuple(gpus)


def _labels(data: Mapping[str, Any], at: str, problems: list[FieldProblem]) -> tuple[tuple[str, str], ...]:
    labels = data.get("labels", {})
    if not isinstance(labels, Mapping) or not all(_is_text(text) for item in labels.items() for text in item):
        problems.append(FieldProblem(f"{at}/labels", "has to be an object of texts"))
        return ()
    return tuple(sorted(labels.items()))


def _amount(data: Mapping[str, Any], name: str, at: str, problems: list[FieldProblem]) -> int | None:
    value = data.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**30):
        return value
    problems.append(FieldProblem(f"{at}/{name}", "has to be a whole number above 0"))
    return None


def _mounts(given: Any, problems: list[FieldProblem]) -> tuple[tuple[str, str, str], ...]:
    if not isinstance(given, list) or len(given) > MAX_MOUNTS:
        problems.append(FieldProblem("mounts", f"has to be a list of at most {MAX_MOUNTS} texts"))
        return ()
    mounts = []
    for number, text in enumerate(given):
        found = _MOUNT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            problems.append(FieldProblem(f"mounts/{number}", "has to be HOST_PATH:PATH or HOST_PATH:PATH:ro"))
        else:
            mounts.append((found[1], found[2], found[3] or "rw"))
    return tuple(mounts)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 80 and value.isprintable()
