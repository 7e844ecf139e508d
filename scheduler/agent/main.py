"""The command line of the agent."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import sys
from pathlib import Path

from scheduler.agent import VERSION, state_folder
from scheduler.agent.agent import Agent
from scheduler.agent.console import say
from scheduler.agent.isolation.probe import (
    AUTO,
    CHOICES,
    BadSite,
    Site,
    choose,
    facts_in_words,
    read_accounts,
)
from scheduler.agent.node.fake_gpus import BadFakeGpus, parse_fake_gpus
from scheduler.agent.node.health_check import INTERVAL_SECONDS
from scheduler.agent.node.inventory import Overrides
from scheduler.agent.server.client import InsecureServer, ServerClient
from scheduler.agent.settings import Settings
from scheduler.agent.tasks.orders import PROCESS_LIMIT
from scheduler.agent.tasks.usage import SAMPLE_SECONDS

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,118}[A-Za-z0-9])?")


def main(arguments: list[str]) -> int:
    parser = _parser()
    try:
        settings = _settings(parser.parse_args(arguments))
        if settings.server:
            ServerClient(settings.server, insecure_ok=settings.insecure_ok)
    except (InsecureServer, BadFakeGpus, BadSite, argparse.ArgumentTypeError, OSError) as error:
        parser.error(str(error))
    os.umask(0o077)
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        state_folder.claim(settings.state, take_over=settings.take_over)
    except state_folder.FolderInUse as error:
        print(error, file=sys.stderr)
        return 1
    try:
        means = choose(settings.site, settings.state)
    except BadSite as error:
        parser.error(str(error))
    agent = Agent(settings, means)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stopping.set())
    where = settings.server or settings.server_file
    say(f"agent {VERSION} of node {settings.name}, server {where}, state {settings.state}")
    say(facts_in_words(means.facts()))
    for sentence in means.missing:
        say(sentence)
    agent.run()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scheduler.agent", description="Runs a node's jobs for a Muster server."
    )
    _add_server(parser)
    _add_node(parser)
    _add_offer(parser)
    _add_isolation(parser)
    _add_lifetime(parser)
    parser.add_argument("--version", action="version", version=VERSION)
    return parser


def _add_server(parser: argparse.ArgumentParser) -> None:
    """Which server to work for, and how to prove that we may."""
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument(
        "--server", default="", help="address of the server, for example https://muster.example.org"
    )
    server.add_argument(
        "--server-file",
        type=Path,
        help="file with its address, which counts while its writer keeps it locked",
    )
    add = parser.add_argument
    add("--join-token", default="", help="lets the node register; better by file: others see a command line")
    add("--join-token-file", type=Path, help="file with the join token (or set MUSTER_JOIN_TOKEN)")
    add("--insecure-ok", action="store_true", help="speak plain http to a server on another machine")
    add("--ca-file", help="certificates to trust instead of the system's")


def _add_node(parser: argparse.ArgumentParser) -> None:
    """Who this node is, and where it keeps what it has to keep."""
    add = parser.add_argument
    add("--name", default=socket.gethostname(), help="name of this node (default: the host name)")
    add("--state", type=Path, required=True, help="folder for the node's key and its jobs' working folders")
    add("--labels", type=_labels, default={}, help="key=value,key=value")
    add("--partition", action="append", default=[], help="partition to be part of; may be given again")


def _add_offer(parser: argparse.ArgumentParser) -> None:
    """What the node offers, and what a task may use of it."""
    add = parser.add_argument
    add("--cpus", type=_positive, help="cores to offer (default: all this process may use)")
    add("--memory-mib", type=_positive, help="memory to offer (default: all)")
    add("--storage-mib", type=_positive, help="storage to offer (default: that of the state folder)")
    add("--numa-domains", type=_positive, help="NUMA domains to report (default: as the machine says)")
    add("--fake-gpus", default="", help="pretend GPUs for a demo, for example 4xH100-80GB")
    add("--no-gpus", action="store_true", help="offer none: another agent of this machine has them")
    add(
        "--avoid-used-gpus",
        action="store_true",
        help="give no job a GPU while a program that Muster did not start uses it",
    )
    add(
        "--max-processes",
        type=_positive,
        default=PROCESS_LIMIT,
        metavar="N",
        help=f"end a task that has more processes at a time (default: {PROCESS_LIMIT})",
    )
    add(
        "--health-check",
        type=_program,
        metavar="PATH",
        help="program that says whether this machine is fit for jobs: with an exit code other than 0 the node drains, "
        "and its last line of output is the reason",
    )
    add(
        "--health-check-seconds",
        type=_positive,
        default=INTERVAL_SECONDS,
        metavar="S",
        help=f"how often it is run (default: {INTERVAL_SECONDS:g})",
    )
    add(
        "--usage-seconds",
        type=_not_negative,
        default=SAMPLE_SECONDS,
        metavar="S",
        help=f"how often the use of running tasks is sampled; 0 = never (default: {SAMPLE_SECONDS:g})",
    )


def _add_isolation(parser: argparse.ArgumentParser) -> None:
    """What jobs may see of this machine, and whose rights they have."""
    add = parser.add_argument
    add(
        "--isolation",
        choices=CHOICES,
        default=AUTO,
        help="auto: all that the machine offers (default); files: rules on files only; off: nothing",
    )
    add(
        "--readable",
        action="append",
        default=[],
        metavar="PATH",
        help="also let jobs read this; may be given again",
    )
    add(
        "--writable",
        action="append",
        default=[],
        metavar="PATH",
        help="also let jobs write this; may be given again",
    )
    add("--hide", action="append", default=[], metavar="PATH", help="let no job see this; may be given again")
    add(
        "--accounts",
        type=Path,
        metavar="FILE",
        help='whose account runs whose jobs, as JSON: {"alice": "asmith"} (default: those of the same name)',
    )
    add("--jobs-as-root", action="store_true", help="run jobs as root, where the agent is root: not safe")
    add(
        "--requests-are-limits",
        action="store_true",
        help="a job that sets no memory limit may use no more than it asks for",
    )


def _add_lifetime(parser: argparse.ArgumentParser) -> None:
    """When jobs end with the agent, and when it replaces another."""
    add = parser.add_argument
    add("--end-jobs-on-stop", action="store_true", help="end the jobs when we are asked to stop (SIGTERM)")
    add(
        "--die-with-parent",
        action="store_true",
        help="the same, and end them when the process that started us is gone",
    )
    add(
        "--take-over",
        action="store_true",
        help="kill an agent that runs with the same state folder, and take its jobs over",
    )


def _settings(given: argparse.Namespace) -> Settings:
    token = given.join_token or os.environ.get("MUSTER_JOIN_TOKEN", "")
    if given.join_token_file and not token:
        token = given.join_token_file.read_text()
    if not _NAME.fullmatch(given.name):
        raise argparse.ArgumentTypeError(
            f"--name {given.name!r}: use letters, digits, dots, dashes, underscores"
        )
    if given.fake_gpus:
        parse_fake_gpus(given.fake_gpus)
    return Settings(
        server=given.server,
        server_file=given.server_file,
        name=given.name,
        state=given.state.expanduser().resolve(),
        join_token=token.strip(),
        overrides=Overrides(
            cpus=given.cpus,
            memory_mib=given.memory_mib,
            storage_mib=given.storage_mib,
            numa_domains=given.numa_domains,
            fake_gpus=given.fake_gpus,
            no_gpus=given.no_gpus,
            avoid_used_gpus=given.avoid_used_gpus,
            labels=given.labels,
            partitions=tuple(given.partition),
        ),
        process_limit=given.max_processes,
        usage_seconds=given.usage_seconds,
        health_check=given.health_check,
        health_check_seconds=given.health_check_seconds,
        requests_are_limits=given.requests_are_limits,
        site=Site(
            isolation=given.isolation,
            readable=tuple(given.readable),
            writable=tuple(given.writable),
            hidden=tuple(given.hide),
            accounts=read_accounts(given.accounts) if given.accounts else {},
            jobs_as_root=given.jobs_as_root,
        ),
        insecure_ok=given.insecure_ok,
        ca_file=given.ca_file,
        parent_pid=os.getppid() if given.die_with_parent else 0,
        ends_jobs=given.end_jobs_on_stop or given.die_with_parent,
        take_over=given.take_over,
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _program(text: str) -> Path:
    path = Path(text).expanduser().resolve()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"{path} is no file that this account may execute")
    return path


def _not_negative(text: str) -> float:
    number = float(text)
    if not 0 <= number < 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to a day")
    return number


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise argparse.ArgumentTypeError(f"{part!r} is not key=value")
        labels[key.strip()] = value.strip()
    return labels
