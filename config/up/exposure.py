"""Who can reach this portal, what its jobs can read, and when it must not start without being asked twice."""

from __future__ import annotations

import ipaddress
import os
import pwd
from collections.abc import Iterable

from config.up.options import Options
from config.up.state import StateError
from scheduler.agent.isolation.kernel import landlock_abi

LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")
#: Where the kernel cannot confine jobs to their own files.
A_JOB_READS = (
    "the secret key that signs sessions, the password of the database, the identity of the node agents",
    "the environment and the files of every other job, and every file of the account",
)


def require_known(options: Options, *, running_on: Iterable[str] = ()) -> None:
    """Refuse to let other machines in while jobs run here under the portal's own account.

    `running_on` names nodes whose jobs still run here from before this start. Raises StateError.
    """
    where = beyond_loopback(options)
    nodes = options.nodes or len(list(running_on))
    if not where or not nodes or options.i_know:
        return
    earlier = "" if options.nodes else f" (of {', '.join(running_on)}, from before this start)"
    raise StateError(
        f"{where} lets other machines in, and jobs run here{earlier} on the machine of the portal. "
        + _danger()
        + " Do one of:\n"
        "  - leave out --host, and let people in through ssh: ssh -L 8000:127.0.0.1:8000 THIS-MACHINE;\n"
        "  - run jobs on other machines only: --nodes 0 here, an agent there (docs/guides/add-a-node.md);\n"
        "  - add --i-know, when everybody who can reach it may do whatever this account may do."
    )


def _danger() -> str:
    """What jobs on this machine mean for the portal, in sentences."""
    if are_confined():
        return (
            "The kernel keeps them from the portal's keys, its database and each other's files; who finds a way"
            " around that becomes any person of the portal."
        )
    return (
        f"They run under the portal's own account, {account()}. Everybody who may submit a job can read:\n"
        + "".join(f"  - {what};\n" for what in A_JOB_READS)
        + "With these one becomes any person of the portal, or changes its database."
    )


def are_confined() -> bool:
    """Whether the agents here confine each job to its own files: what else they do, the page of each node says."""
    return landlock_abi() > 0


def beyond_loopback(options: Options) -> str:
    """The option or variable that lets other machines in, as it was given; empty when none does."""
    if not is_loopback(options.host):
        return f"--host {options.host or repr('')}"
    names = [name.strip() for name in os.environ.get("MUSTER_ALLOWED_HOSTS", "").split(",")]
    strange = [name for name in names if name and not is_loopback(name.strip("[]"))]
    return f"MUSTER_ALLOWED_HOSTS={','.join(strange)}" if strange else ""


def is_loopback(host: str) -> bool:
    """Whether this name or address is this machine's own, for certain: no name is looked up."""
    if host.lower() in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def account() -> str:
    """The account that jobs run under."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"number {os.geteuid()}"


def banner_lines(options: Options) -> list[str]:
    """What the person who starts the portal must know about its jobs."""
    if not options.nodes:
        return []
    if are_confined():
        whose = "an account of each person's own" if os.geteuid() == 0 else f"the account {account()}"
        lines = [
            f"Jobs run here under {whose}, and see the system and their own files only:",
            "the page of each node says what keeps them apart.",
        ]
    else:
        lines = [
            f"Jobs run here under the account {account()}. A job can read:",
            *(f"  - {what}." for what in A_JOB_READS),
            "Let nobody submit jobs whom you would not give this account.",
        ]
    if where := beyond_loopback(options):
        lines.append(f"Other machines can reach it ({where}), and --i-know was given.")
    return [*lines, ""]
