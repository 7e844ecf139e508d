"""Readers that a door reaches work in proportion to what they are given: four times the text, four times the work.

Patterns are found by reading the source, so that a new one is tried without being listed. Functions that read text
are listed below; one that is missing from the list fails a test.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import re
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from accounts.api import etags
from infra import client_address, plain_text
from infra.api import rest
from quotas.core import amounts, gpu_models, resources
from scheduler.realtime import topics
from scheduler.services.moves import drains
from scheduler.services.submission import fields as inputs
from scheduler.services.submission import (
    fields_dependencies,
    fields_placement,
    fields_task,
    idempotency,
)
from scheduler.services.submission.sbatch import geometry, options, parse_sbatch, places, values
from scheduler.services.submission.sbatch.directives import Directives, Said
from scheduler.services.submission.sbatch.readers import READERS as SBATCH_READERS
from scheduler.web import forms

ROOT: Final = Path(__file__).resolve().parents[2]
#: A piece that is repeated, what stands before it, and what spoils it at the end.
PIECES: Final = (
    " ", "\t", "\n", "0", "9", "a", "A", "-", "_", ".", ":", ",", "(", ")", "[", "=", "%", "|", "&", "?", "'", '"',
    "\\", "1,", "1-", "a,", "a=1,", "gpu(", "gpu:", "gpu,", "-- ", "mig ", "1g.1gb ", "1g.1gb+a", "nvidia-",
    "afterok:1:",     "#SBATCH ", "1d", "+", "é", "٣", "a:", '{"a":', "%20", "k ",
)  # fmt: skip
BEFORE: Final = ("", "1", "gpu")
AFTER: Final = ("", "!")
LENGTH: Final = 2000
#: Four times the text may take so much longer; twice as much as proportion, and far from its square (16).
MOST_RATIO: Final = 9.0


def worst(
    read: Callable[[str], object], make: Callable[[str, str, str, int], str] | None = None
) -> tuple[float, str]:
    """The largest ratio of work for a text and for one four times as long, over all texts that are tried.

    It ends at the first that is beyond the bound: every further one would be as slow, and one is enough to fail.
    """
    found = (0.0, "")
    for piece in PIECES:
        for before in BEFORE:
            for after in AFTER:
                texts = [before + piece * (length // len(piece)) + after for length in (LENGTH, 4 * LENGTH)]
                ratio = ratio_of(read, *texts)
                if ratio > MOST_RATIO:  # once more: others compute on this machine too
                    ratio = min(ratio, *(ratio_of(read, *texts) for _ in range(3)))
                found = max(found, (ratio, f"{before!r} + {piece!r} * n + {after!r}"))
                if ratio > MOST_RATIO:
                    return found
    return found


def ratio_of(read: Callable[[str], object], short: str, long: str) -> float:
    """Additional amount work the long text is; 1 where it is as cheap as a few looks at each character."""
    for_long = work(read, long)
    if for_long <= 8 * a_pass():
        return 1.0
    return for_long / max(min(work(read, short) for _ in range(2)), a_pass())


def work(read: Callable[[str], object], text: str) -> float:
    """Seconds of this thread's own time."""
    began = time.thread_time()
    with contextlib.suppress(Exception):  # a refusal is an answer
        read(text)
    return time.thread_time() - began


_pass: list[float] = []


def a_pass() -> float:
    """What it takes to look once at each character: less cannot be measured."""
    if not _pass:

        def one() -> float:
            began = time.thread_time()
            sum(1 for _ in range(LENGTH))
            return time.thread_time() - began

        _pass.append(max(sorted(one() for _ in range(9))[4], 1e-5))
    return _pass[0]


# ---------------------------------------------------------------- patterns, found in the source

METHODS: Final = frozenset({"match", "fullmatch", "search", "sub", "split", "findall", "finditer"})
#: What no request reaches: programs of operators, the agent's own machine, answers of providers.
NOT_AT_A_DOOR: Final = ("migrations", "management", "agent", "simulator", "up", "providers", "settings")


#: The door's own bound comes before these, and is tried with the reader that holds it.
BOUNDED: Final = {gpu_models._ASKED: "read_slice takes at most MAX_NAME characters"}


#: A module without any of this neither makes a pattern nor uses one; most are such, and need not be parsed.
USES_PATTERNS: Final = re.compile(rf"^import re\b|\.(?:{'|'.join(sorted(METHODS))})\(", re.MULTILINE)


def sources() -> Iterator[tuple[str, str]]:
    """Name and text of each module."""
    for app in ("infra", "accounts", "quotas", "scheduler", "notifications", "config"):
        for file in sorted((ROOT / app).rglob("*.py")):
            if not set(file.relative_to(ROOT).parts) & set(NOT_AT_A_DOOR):
                yield ".".join(file.relative_to(ROOT).with_suffix("").parts), file.read_text()


def patterns() -> Iterator[tuple[str, re.Pattern[str], str]]:
    """Where each pattern is, itself, and each method that the source calls on it."""
    trees = {module: ast.parse(text) for module, text in sources() if USES_PATTERNS.search(text)}
    calls = {
        module: [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for module, tree in trees.items()
    }
    called: dict[str, set[str]] = {}
    for call in chain.from_iterable(calls.values()):
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name | ast.Attribute):
            of = call.func.value
            called.setdefault(of.id if isinstance(of, ast.Name) else of.attr, set()).add(call.func.attr)
    for module, tree in trees.items():
        for node in calls[module]:
            if not isinstance(node.func, ast.Attribute):
                continue
            if not isinstance(node.func.value, ast.Name) or node.func.value.id != "re":
                continue
            if node.func.attr in METHODS:
                flags = re.ASCII if any("ASCII" in ast.unparse(a) for a in node.args) else 0
                text = ast.literal_eval(node.args[0])
                yield f"{module}:{node.lineno}", re.compile(text, flags), node.func.attr
        if not any(isinstance(node, ast.Import) and node.names[0].name == "re" for node in tree.body):
            continue
        for name, value in vars(importlib.import_module(module)).items():
            if isinstance(value, re.Pattern) and value not in BOUNDED and _made_here(tree, name):
                methods = called.get(name, set()) & METHODS
                assert methods, f"{module}.{name} is a pattern that nothing uses by its name"
                for method in sorted(methods):
                    yield f"{module}.{name}", value, method


def _made_here(tree: ast.Module, name: str) -> bool:
    made = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [t for node in made for t in (node.targets if isinstance(node, ast.Assign) else [node.target])]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def test_every_pattern_is_linear() -> None:
    """One test for all: to name each of them, every worker would read the whole source before its first test."""
    slow, tried = [], 0
    for where, pattern, method in patterns():
        asked = getattr(pattern, method)
        ratio, text = worst((lambda given, asked=asked: asked("", given)) if method == "sub" else asked)
        tried += 1
        if ratio > MOST_RATIO:
            slow.append(
                f"{where}: {pattern.pattern!r}.{method} on {text}: {ratio:.0f} times the work for 4 times the text"
            )

    assert not slow, "\n".join(slow)
    assert tried > 50


@pytest.mark.parametrize("pattern", [r"\s*([0-9]+)\s*([kmg]i?)?b?\s*", r"a*a*b", r"(.*?)[ _-]+(\d+)"])
def test_a_pattern_that_is_not_linear_is_found(pattern: str) -> None:
    assert worst(re.compile(pattern).fullmatch)[0] > MOST_RATIO


# ---------------------------------------------------------------- readers, by name


def field(name: str, **more: Any) -> Callable[[str], object]:
    """A field of a job, as every door gives it to its reader."""

    def read(text: str) -> object:
        given = inputs.Inputs({name: text, **more})
        return READ_FIELD[name](given)

    return read


READ_FIELD: Final[dict[str, Callable[[inputs.Inputs], object]]] = {
    "memory": lambda given: given.read("memory", resources.parse_mib),
    "cpu_cores": lambda given: given.read("cpu_cores", resources.cores_to_millis),
    "gpu_share": lambda given: given.read("gpu_share", fields_task.share_of_gpu),
    "time_limit": lambda given: given.read("time_limit", inputs.read_seconds),
    "begin_at": lambda given: given.read("begin_at", inputs.read_moment),
    "tasks": lambda given: given.integer("tasks", least=1, most=9),
    "preemptible": lambda given: given.flag("preemptible", default=True),
    "name": lambda given: given.text("name", most=10**9),
    "labels": lambda given: fields_placement.read_labels(
        inputs.Inputs({"labels": dict([[given.payload["labels"]] * 2])}), "labels"
    ),
}


def header(name: str, text: str) -> Any:
    return SimpleNamespace(headers={name: text}, META={f"HTTP_{name.upper().replace('-', '_')}": text,
                                                       "REMOTE_ADDR": "127.0.0.1"}, query_params={})  # fmt: skip


def in_a_script(text: str) -> object:
    return sbatch_lines(f"#!/bin/sh\n{text}\n")


def sbatch_lines(script: str) -> object:
    """All of `parse_sbatch` but the look at queues."""
    found = parse_sbatch.read_directives(script)
    geometry.translate(found)
    return found


def option(name: str) -> Callable[[str], object]:
    return lambda text: SBATCH_READERS[name](Directives(said={name: Said(2, "")}), text)


READERS: Final[dict[str, Callable[[str], object]]] = {
    **{f"field {name}": field(name) for name in READ_FIELD},
    "sbatch line": in_a_script,
    "sbatch of many lines": lambda text: in_a_script(text.replace("(", "\n#SBATCH --gres=gpu(((\n")),
    "sbatch --gres": lambda text: in_a_script(f"#SBATCH --gres={text}"),
    "sbatch words": lambda text: in_a_script(f"#SBATCH {text}"),
    "array": lambda text: fields_dependencies.read_array(text, most=10_000),
    "array_size": lambda text: fields_dependencies.array_size(text, most=10_000),
    "refs_named": fields_dependencies.refs_named,
    "find_circle": lambda text: fields_dependencies.find_circle({str(n): [str(n + 1)] for n in range(len(text) // 10)}),
    "job_ref": fields_dependencies.job_ref,
    "read_integer": inputs.read_integer,
    "read_seconds": inputs.read_seconds,
    "read_moment": inputs.read_moment,
    "read_deadline": drains.read_deadline,
    "parse_bytes": resources.parse_bytes,
    "parse_mib": resources.parse_mib,
    "parse_amount": lambda text: amounts.parse_amount("memory_mib", text),
    "cores_to_millis": resources.cores_to_millis,
    "read_slice": gpu_models.read_slice,
    "slice_of": gpu_models.slice_of.__wrapped__,
    "model_matches": lambda text: gpu_models.model_matches.__wrapped__(text, text),
    "suits": lambda text: gpu_models.suits.__wrapped__(text, text),
    "line_trouble": plain_text.line_problem,
    "several_lines_trouble": plain_text.lines_problem,
    "parse_clean": lambda text: rest.parse_clean(text.encode()),
    "JSON": lambda text: rest._check_clean({"a": [text, {text: text}]}),
    "unclean": rest.unclean,
    "Idempotency-Key": idempotency.ACCEPTABLE.fullmatch,
    "If-Match": lambda text: etags.expected(header("If-Match", f'"line-1-{text}"'), "line", 1, "limit"),
    "X-Forwarded-For": lambda text: client_address.client_of("127.0.0.1", forwarded_for=text, proto=text),
    "topic": topics.parse_topic,
    "form env": lambda text: forms.payload_of({"env": text, "what": "true"}, time_zone="UTC"),
    "form script": lambda text: forms.is_sbatch(text),
    **{f"sbatch --{name}": option(name) for name in SBATCH_READERS},
    "sbatch command line": lambda text: list(options.read_options(text.split())),
    "sbatch words of a line": options.split_words,
    "sbatch features": places.feature_terms,
    "sbatch node names": values.node_names,
}  # fmt: skip
#: Functions with such a name that are given fields and not a text, or that another in the list calls.
NOT_TEXT: Final = {
    "read_decimal": "called for gpu_share, after the field's own bound",
    "read_labels": "field labels", "read_tolerations": "fields of bounded text", "read_affinity": "as tolerations",
    "read_job_terms": "as tolerations", "read_task_term": "as tolerations", "read_dependencies": "at most 200",
    "read_array": "array", "parse_sbatch": "sbatch line", "read_directives": "sbatch line",
    "read_options": "sbatch command line", "read_dependency": "sbatch --dependency",
    "parse_job": "its fields", "parse_change": "its fields",
    "read_drain": "fields of bounded text", "read_drain_of": "fields of bounded text",
    "read_inventory": "fields", "read_isolation": "bounded texts",
    "read_pack": "as tolerations", "read_restart_rules": "as tolerations", "read_relax": "as tolerations",
    "read_checkpoint": "as tolerations", "read_limit_signal": "as tolerations",
    "read_probes": "as tolerations", "read_usage": "numbers",
    "read_upload": "bounded text", "read_image": "bounded text", "read_docker_settings": "bounded texts",
    "read_reservation": "bounded text", "read_terms": "its fields",
    "read_window": "its fields", "read_env": "fields of bounded text", "read_working_dir": "field name",
    "read_job_type": "bounded text", "read_ref": "bounded text", "read_cpu_cores": "field cpu_cores",
    "read_memory": "field memory", "read_gpu_slice": "read_slice", "read_gpu_share": "field gpu_share",
    "read_extras": "fields", "read_log": "a job", "read_stream": "a task", "read_merged": "tasks",
    "read_artifacts": "bounded texts", "read_secrets": "fields of bounded text", "read_mail_types": "bounded text",
    "read_alerts": "rows", "read_reservations": "rows",
    "read_notice": "a row", "read_results": "of agents, bounded whole",
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_every_reader_is_linear(name: str, settings: Any) -> None:
    settings.MUSTER_TRUSTED_PROXIES = ["127.0.0.0/8", "1.0.0.0/8"]
    ratio, text = worst(READERS[name])
    assert ratio <= MOST_RATIO, f"{name} on {text}: {ratio:.0f} times the work for 4 times the text"


def test_every_function_that_reads_is_in_the_list() -> None:
    found = set()
    for module, _ in sources():
        if ".services" in module or module.startswith("quotas.core") or module == "infra.api.rest":
            for name, value in vars(importlib.import_module(module)).items():
                ours = inspect.isfunction(value) and value.__module__ == module
                if ours and re.match(r"(read|parse)_", name) and name != "parse_many":
                    found.add(name)
    assert found <= READERS.keys() | NOT_TEXT.keys() | OF_PROVIDERS, found - READERS.keys() - NOT_TEXT.keys()


#: Read what Slurm and Kubernetes answer, and no request.
OF_PROVIDERS: Final = frozenset({"parse_all", "parse_tres"})
