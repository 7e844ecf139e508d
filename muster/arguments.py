"""The arguments of `python -m muster`, and what each verb does."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Any

from muster import changes, configuration, jobs, left_by_jobs, profiles, reservations, uploads
from muster.client import Client, Failed, plain
from muster.submit import submit

_ABOUT = """Muster from a terminal.

MUSTER_URL is the address of the portal (http://127.0.0.1:8000 when it is not set),
MUSTER_TOKEN an API token. Exit code 0: done. 1: refused or failed, with the reason. 2: wrong arguments.
"""


def parser() -> ArgumentParser:
    """All nouns and verbs."""
    root = ArgumentParser(prog="muster", description=_ABOUT, formatter_class=RawDescriptionHelpFormatter)
    nouns = root.add_subparsers(dest="noun", required=True, metavar="NOUN")
    job = _noun(nouns, "job", "one job")
    about = "why it waits, or why it runs where it does"
    _verb(job, "why", jobs.why, about).add_argument("--json", action="store_true", help="as the API answers")
    _changes(job)
    _arrays(_noun(nouns, "array", "an array, all elements at once"))
    _many(_noun(nouns, "jobs", "many jobs at once"))
    results = _noun(nouns, "results", "files that jobs left in their working folders, on their nodes")
    _list(results, left_by_jobs.results_list, "all files, read from the node now")
    download = _download(results, left_by_jobs.results_download, "all files, or one")
    download.add_argument("path", nargs="?", help="one file, as the list writes it")
    download.add_argument("--attempt", type=int, help="of this attempt (default: the latest with a folder)")
    download.add_argument("--rank", type=int, help="of this task (default: the first with a folder)")
    _delete(results, "all kept results of a job")

    artifacts = _noun(nouns, "artifacts", "files that jobs named, stored beyond their nodes")
    _list(artifacts, left_by_jobs.artifacts_list, "all that are stored, with SHA-256")
    download = _download(
        artifacts, left_by_jobs.artifacts_download, "all artefacts, or one; checksums are compared"
    )
    download.add_argument("id", nargs="?", type=int, help="one file, by its id in the list")
    _delete(artifacts, "all stored artefacts of a job")

    checkpoints = _noun(nouns, "checkpoints", "checkpoints of jobs")
    _list(checkpoints, left_by_jobs.checkpoints_list, "the newest, also those that have gone")
    which = "id or name (default: the newest complete one)"
    download = _download(checkpoints, left_by_jobs.checkpoints_download, "the files of one")
    download.add_argument("checkpoint", nargs="?", help=which)
    _delete(checkpoints, "one checkpoint").add_argument("checkpoint", help="id or name")
    _uploads(_noun(nouns, "uploads", "folders that you have sent for jobs"))
    _submit(nouns)
    _reservations(_noun(nouns, "reservations", "nodes and parts of nodes set aside for a window"))
    _configuration(_noun(nouns, "configuration", "what operators set of the site, as a YAML file"))
    _profiles(_noun(nouns, "profiles", "versions of scheduler profiles"))
    return root


def _reservations(verbs: Any) -> None:
    listed = verbs.add_parser("list", help="those that are not over")
    listed.add_argument("--all", action="store_true", help="also those that are over")
    listed.set_defaults(do=reservations.listed)
    show = verbs.add_parser("show", help="one, with its GPU time")
    show.add_argument(
        "--cost", action="store_true", help="operators: which waiting jobs a request would delay"
    )
    show.set_defaults(do=reservations.show)
    made = {
        "create": (reservations.create, "operators: reserve nodes or parts of nodes"),
        "request": (reservations.create, "project leads: ask operators for a reservation"),
        "change": (reservations.change, "change name, reason, starts_at or ends_at"),
        "approve": (reservations.decide, "operators: approve a request, with --set as changed"),
        "decline": (reservations.decide, "operators: decline a request"),
        "cancel": (reservations.decide, "end a reservation or withdraw a request"),
    }
    verb = {name: verbs.add_parser(name, help=about, description=about) for name, (_, about) in made.items()}
    for name, one in verb.items():
        one.set_defaults(do=made[name][0], verb=name)
    for name in ("create", "request", "change", "approve"):
        verb[name].add_argument(
            "--set", metavar="NAME=VALUE", action="append", default=[], required=name != "approve",
            help="a term, such as project=vision, node_count=2, gpus_per_node=4, starts_at=2027-03-01T08:00Z or "
            "seconds=7200; may be repeated",
        )  # fmt: skip
    for name in ("change", "approve", "decline", "cancel"):
        verb[name].add_argument("id", help="of the reservation")
    for name in ("approve", "decline", "cancel"):
        verb[name].add_argument(
            "--reason", default="", required=name == "decline", help="for those who asked"
        )
    show.add_argument("id", help="of the reservation")
    for one in (listed, show, *verb.values()):
        one.add_argument("--json", action="store_true", help="as the API answers")


def _configuration(verbs: Any) -> None:
    verbs.add_parser("export", help="print all that can be applied").set_defaults(do=configuration.export)
    apply = verbs.add_parser("apply", help="make the site as a file says, all of it or nothing")
    apply.add_argument("-f", "--file", required=True, help="the file; - reads standard input")
    apply.add_argument("--reason", required=True, help="recorded in the audit trail")
    apply.add_argument("--dry-run", action="store_true", help="only print what would change")
    apply.add_argument(
        "--prune", action="store_true", help="delete rows of the file's sections that it does not name"
    )
    apply.add_argument("--json", action="store_true", help="as the API answers")
    apply.set_defaults(do=configuration.apply)


def _profiles(verbs: Any) -> None:
    abouts = {
        "versions": "who changed a profile, when and why; newest first",
        "diff": "the fields in which two versions differ",
        "rollback": "put an earlier version in force again, as a new version",
    }
    for name, about in abouts.items():
        made = verbs.add_parser(name, help=about, description=about)
        made.add_argument("profile", help="name or id")
        made.add_argument("--json", action="store_true", help="as the API answers")
        made.set_defaults(do=getattr(profiles, name))
        if name == "diff":
            made.add_argument("before", type=int, help="number of a version")
            made.add_argument("after", type=int, nargs="?", help="number of a version (default: the newest)")
        if name == "rollback":
            made.add_argument("version", type=int, help="number of the version to restore")
            made.add_argument(
                "--reason", required=True, help="recorded with the version and in the audit trail"
            )


def _changes(verbs: Any) -> None:
    """What changes one job."""
    change = _verb(
        verbs,
        "change",
        changes.change,
        "change fields of a pending job in place, or the time limit of a running one",
    )
    change.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], required=True,
        help="a field of the job, such as priority=40, queue=long or time_limit=2h; null resets it; may be repeated",
    )  # fmt: skip
    abouts = {
        "cancel": "end a job; by the number of an array, all elements",
        "hold": "hold a pending job until it is released; by the number of an array, all elements",
        "release": "release a held job; by the number of an array, all elements",
        "requeue": "stop a running job and queue it again, or queue one that has ended",
    }
    made = [change, *(_verb(verbs, name, changes.act, about) for name, about in abouts.items())]
    for one in made:
        one.add_argument("--reason", default="", help="for the audit trail")
        one.add_argument("--json", action="store_true", help="as the API answers")


def _arrays(verbs: Any) -> None:
    abouts = {
        "show": "how many elements are in which state",
        "cancel": "cancel all elements that have not ended",
        "hold": "hold all pending elements",
        "release": "release all held elements",
        "change": "change how many elements may run at once",
    }
    for name, about in abouts.items():
        made = verbs.add_parser(name, help=about, description=about)
        made.add_argument("array", type=int, help="number of the array")
        made.add_argument("--json", action="store_true", help="as the API answers")
        made.set_defaults(do=changes.array)
        if name == "change":
            made.add_argument(
                "--max-running", required=True, metavar="NUMBER", help="a number, or none for any"
            )
        if name != "show":
            made.add_argument("--reason", default="", help="for the audit trail")


def _many(verbs: Any) -> None:
    abouts = {
        "cancel": "cancel jobs",
        "hold": "hold pending jobs",
        "release": "release held jobs",
        "requeue": "stop running jobs and queue them again; with --filter state=failed, failed ones",
        "reprioritise": "change the priority of pending jobs",
    }
    for name, about in abouts.items():
        made = verbs.add_parser(name, help=about, description=about)
        made.add_argument(
            "--filter", metavar="NAME=VALUE", action="append", default=[], required=True,
            help="as GET /jobs takes them: user=me, queue=long, state=queued, name=TEXT; may be repeated",
        )  # fmt: skip
        made.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
        made.add_argument("--most", type=int, help="at most this number of jobs, the oldest first")
        made.add_argument("--reason", default="", help="for the audit trail")
        made.add_argument("--json", action="store_true", help="as the API answers")
        made.set_defaults(do=changes.many)
        if name == "reprioritise":
            made.add_argument("--priority", required=True, help="0 to 100, or the name of a class")


def _uploads(verbs: Any) -> None:
    create = verbs.add_parser("create", help="send a folder; prints its id, for the field upload of jobs")
    create.add_argument("folder")
    _exclude(create)
    create.add_argument("--json", action="store_true", help="as the API answers")
    create.set_defaults(do=uploads.create)
    listed = verbs.add_parser("list", help="your uploads, newest first")
    listed.add_argument("--json", action="store_true", help="as the API answers")
    listed.set_defaults(do=uploads.list_all)
    delete = verbs.add_parser("delete", help="one upload, for good")
    delete.add_argument("id")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.set_defaults(do=uploads.delete)


def _submit(nouns: Any) -> None:
    about = "submit a job: a script, an sbatch script or a job request in JSON, or --command"
    made = nouns.add_parser("submit", help=about, description=about)
    made.add_argument("file", nargs="?", help="the script or request; - reads standard input")
    made.add_argument("--command", "-c", help="what runs, given to /bin/sh -c")
    made.add_argument(
        "--upload", metavar="FOLDER", help="its files are in the working folder when the job starts"
    )
    _exclude(made)
    made.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="a field of the job; may be repeated"
    )
    made.add_argument("--json", action="store_true", help="as the API answers")
    made.set_defaults(do=submit)


def _exclude(made: ArgumentParser) -> None:
    made.add_argument(
        "--exclude", metavar="PATTERN", action="append", default=[],
        help="names or paths to leave out, such as .git or '*.pyc'; may be repeated",
    )  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments say; answers the exit code."""
    asked = parser().parse_args(arguments)
    try:
        url = os.environ.get("MUSTER_URL", "http://127.0.0.1:8000")
        asked.do(Client(url, os.environ.get("MUSTER_TOKEN", "")), asked)
    except Failed as error:
        for line in str(error).splitlines():
            print(plain(line), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _noun(nouns: Any, name: str, about: str) -> Any:
    return nouns.add_parser(name, help=about, description=about).add_subparsers(
        dest="verb", required=True, metavar="VERB"
    )


def _verb(verbs: Any, name: str, do: Any, about: str) -> ArgumentParser:
    made: ArgumentParser = verbs.add_parser(name, help=about, description=about)
    made.set_defaults(do=do)
    made.add_argument("job", type=_job, help="number of the job, or 123_3 for element 3 of array 123")
    return made


def _job(text: str) -> str:
    """The number of a job, or an element of an array."""
    number, _, index = text.partition("_")
    if not (number.isascii() and number.isdecimal() and (not _ or (index.isascii() and index.isdecimal()))):
        raise ArgumentTypeError(f"{text!r} is no number of a job; write for example 123 or 123_3")
    return text


def _list(verbs: Any, do: Any, about: str) -> None:
    _verb(verbs, "list", do, about).add_argument("--json", action="store_true", help="as the API answers")


def _download(verbs: Any, do: Any, about: str) -> ArgumentParser:
    made = _verb(verbs, "download", do, about)
    made.add_argument(
        "--into", metavar="FOLDER", help="a new or empty folder (default: one named by the job)"
    )
    return made


def _delete(verbs: Any, about: str) -> ArgumentParser:
    made = _verb(verbs, "delete", left_by_jobs.delete, about + ", for good")
    made.add_argument("--yes", action="store_true", help="do not ask")
    made.add_argument("--reason", default="", help="for the audit trail")
    return made
