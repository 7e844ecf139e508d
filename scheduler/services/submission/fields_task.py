"""Reads what a task is given: its environment, secrets and folder, parts of GPUs, named extras."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from accounts.models.secret import SECRET_NAME
from accounts.services import secrets
from infra.errors import NotFound
from quotas.core.gpu_models import read_slice
from quotas.core.resources import cores_to_millis, parse_mib
from scheduler.agent.results.patterns import BadPattern, FilePattern
from scheduler.backends.registry import backend_of, capabilities_of
from scheduler.core.mail_types import parse_mail_types
from scheduler.core.qos import QOS_WORDS, qos_of
from scheduler.models import FolderUploadState
from scheduler.services.submission.declaration import Kind, Schema, choice, declared
from scheduler.services.submission.fields import BadValue, Inputs, read_decimal, read_integer, text_trouble
from scheduler.services.submission.fields_dependencies import DATA_NAME
from scheduler.services.uploads.verbs import upload_of

MAX_ENV_ENTRIES: Final = 512
#: The kernel gives a process about 2 MiB for arguments and environment together.
MAX_ENV_CHARACTERS: Final = 262_144
MAX_ENV_VALUE: Final = 32_768
MAX_PATH: Final = 1024
MAX_MAIL_TYPES: Final = 120
MAX_ARTIFACTS: Final = 32
MAX_UPLOAD: Final = 64
MAX_IMAGE: Final = 255
#: What a task gets when its job says nothing; small, so that forgetting it costs little.
DEFAULT_CPU_MILLIS: Final = 1000
DEFAULT_MEMORY_MIB: Final = 256
#: The names of the memory, and the unit that a number without one counts in there.
MEMORY_UNITS: Final = {"memory": "", "memory_bytes": "", "memory_gb": "g"}
MAX_EXTRAS: Final = 32
MAX_EXTRA: Final = 2**31

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
#: Muster and the drivers set these for each task.
ENV_OURS: Final = ("MUSTER_", "CUDA_VISIBLE_DEVICES")
#: A name as registries have it, with a tag, a digest or both.
_IMAGE: Final = re.compile(
    r"(?:[a-zA-Z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_WORD = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


def read_env(inputs: Inputs, name: str) -> dict[str, str]:
    """Variables of the environment and their values."""
    found: dict[str, str] = {}
    for variable, value in inputs.mapping(name, most=MAX_ENV_ENTRIES).items():
        at = f"{name}/{str(variable)[:60]}"
        if not isinstance(variable, str) or not ENV_NAME.fullmatch(variable):
            inputs.wrong(at, "Not a variable name: letters, digits and _, no digit first.", code="bad-name")
        elif variable.startswith(ENV_OURS[0]) or variable in ENV_OURS:
            inputs.wrong(at, "Is set by Muster for each task; choose another name.", code="reserved")
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            inputs.wrong(at, "Must be text or a number.", code="not-text")
        elif trouble := text_trouble(str(value), most=MAX_ENV_VALUE):
            inputs.wrong(at, trouble, code="bad-text")
        else:
            found[variable] = str(value)
    if sum(len(variable) + len(value) for variable, value in found.items()) > MAX_ENV_CHARACTERS:
        inputs.wrong(
            name, f"Is longer than {MAX_ENV_CHARACTERS} characters in all; use a file.", code="too-long"
        )
    return found


# ---------------------------------------------------------------- secrets

MAX_SECRETS: Final = 16
SECRET_OWNERS: Final = ("user", "project")
_SECRET_NAME: Final = re.compile(SECRET_NAME)
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


def _read_secret_name(inputs: Inputs, name: str) -> str:
    given = inputs.given(name)
    if not isinstance(given, str) or not _SECRET_NAME.fullmatch(given):
        inputs.wrong(name, "Must be the name of a secret.", code="bad-name")
        return ""
    return given


def _read_secret_variable(inputs: Inputs, name: str) -> str:
    given = inputs.given(name)
    if not isinstance(given, str) or not ENV_NAME.fullmatch(given):
        inputs.wrong(name, "Not a variable name: letters, digits and _, no digit first.", code="bad-name")
    elif given.startswith(ENV_OURS[0]) or given in ENV_OURS:
        inputs.wrong(name, "Is set by Muster for each task; choose another name.", code="reserved")
    else:
        return given
    return ""


def _read_secret_file(inputs: Inputs, name: str) -> str:
    given = inputs.given(name)
    if not isinstance(given, str) or not _FILE_NAME.fullmatch(given) or given in (".", ".."):
        inputs.wrong(
            name, "Must be a file name of letters, digits, dots, dashes and underscores.", code="bad-name"
        )
        return ""
    return given


@dataclass(slots=True)
class SecretAsked:
    """A secret that the tasks of a job get, as a variable or as a file."""

    name: str = declared(
        "name", kind=Kind.TEXT, read=_read_secret_name, default="", most=63, help="The secret's name."
    )
    env: str = declared(
        "env", kind=Kind.TEXT, read=_read_secret_variable, default="", most=128,
        help="The variable of the environment that has the value.",
    )  # fmt: skip
    file: str = declared(
        "file", kind=Kind.TEXT, read=_read_secret_file, default="", most=64,
        help="The file in the folder MUSTER_SECRETS_DIR that has the value.", left_out="without env: the name",
    )  # fmt: skip
    of: str = choice(
        "of",
        SECRET_OWNERS,
        default="",
        help="Whose: user, or project. Left out: your own, else the project's.",
    )


SECRET: Final = Schema(SecretAsked)


def secret_of_text(text: str) -> dict[str, str]:
    """A secret as one line names it: `wandb,env=WANDB_API_KEY`, `ssh,file=id_rsa` or `token`; raises BadValue."""
    name, *options = (part.strip() for part in text.split(","))
    found = {"name": name}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or key not in ("env", "file", "of") or key in found:
            raise BadValue(f"{text[:80]!r} is no secret; write wandb,env=WANDB_API_KEY or ssh,file=id_rsa")
        found[key] = value
    return found


def secret_as_text(kept: Mapping[str, str]) -> str:
    """The line for a secret as the job's row keeps it."""
    return ",".join([kept["name"], *(f"{key}={kept[key]}" for key in ("env", "file", "of") if key in kept)])


def read_secrets(inputs: Any, name: str) -> list[dict[str, str]]:
    """Secrets by name, each as the job's row keeps it: with whose it is, and a variable or a file; no values."""
    asked: list[tuple[str, SecretAsked]] = []
    for number, item in enumerate(inputs.listing(name, most=MAX_SECRETS)):
        at = f"{name}/{number}"
        if not isinstance(item, Mapping):
            inputs.wrong(
                at, 'Must be an object, as {"name": "wandb", "env": "WANDB_API_KEY"}.', code="not-an-object"
            )
            continue
        if "value" in item:
            inputs.wrong(
                f"{at}/value",
                "Values are not accepted here. Set the secret under Settings or on the project's page, and name it.",
                code="unknown-field",
            )
            continue
        one, its = SECRET.read(item, under=f"{inputs.under}{at}/")
        inputs.problems += its.problems
        if its.problems:
            continue
        if not one.name:
            inputs.wrong(f"{at}/name", "Required: the name of a secret.", code="required")
        elif one.env and one.file:
            inputs.wrong(f"{at}/file", "Give env or file; for both, name the secret twice.", code="one-of")
        else:
            asked.append((at, one))
    _refuse_same_places(inputs, asked)
    _refuse_backend(inputs, name, asked)
    return _with_owners(inputs, asked)


def _refuse_same_places(inputs: Any, asked: list[tuple[str, SecretAsked]]) -> None:
    seen: set[tuple[str, str]] = set()
    for at, one in asked:
        where = ("env", one.env) if one.env else ("file", one.file or one.name)
        if where in seen:
            inputs.wrong(f"{at}/{where[0]}", f"Two secrets would be {where[1]}; rename one.", code="one-of")
        seen.add(where)


def _refuse_backend(inputs: Any, name: str, asked: list[tuple[str, SecretAsked]]) -> None:
    queue = inputs.queue
    if asked and queue is not None and not backend_of(queue.cluster).capabilities.keeps_secrets:
        inputs.wrong(
            name,
            f"Queue {queue.slug} runs jobs by a backend that cannot keep secrets; use another queue.",
            code="no-secrets-here",
        )


def _with_owners(inputs: Any, asked: list[tuple[str, SecretAsked]]) -> list[dict[str, str]]:
    """Settle whose secret each is; a name that nobody has is refused, and says where one of that name is."""
    project = inputs.project
    if not asked or project is None:
        return []
    user = inputs.catalogue.user
    known = secrets.usable(user, project, {one.name for _, one in asked})
    kept = []
    for at, one in asked:
        of = one.of or ("user" if ("user", one.name) in known else "project")
        if (of, one.name) not in known:
            inputs.wrong(f"{at}/name", _no_secret(user, project, one), code="no-such-secret")
            continue
        place = {"env": one.env} if one.env else {"file": one.file or one.name}
        kept.append({"name": one.name, "of": of, **place})
    return kept


def _no_secret(user: Any, project: Any, one: SecretAsked) -> str:
    if one.of == "user":
        return f"You have no secret {one.name!r}; set one under Settings."
    if other := secrets.elsewhere(user, one.name):
        return (
            f"Secret {one.name!r} is of project {other}, and this job is of project {project.slug}. Submit the job to "
            f"{other}, or ask a lead of {project.slug} to set it there."
        )
    whose = f"Project {project.slug} has" if one.of else f"Neither you nor project {project.slug} has"
    out = "ask a lead to set it on the project's page" if one.of else "set it under Settings"
    return f"{whose} {'no' if one.of else 'a'} secret {one.name!r}; {out}."


def read_upload(inputs: Any, name: str) -> UUID | None:
    """The id of a folder that the person has uploaded; one of somebody else is as unknown as one that is not there."""
    given = inputs.text(name, most=MAX_UPLOAD)
    if not given:
        return None
    try:
        row = upload_of(given, by=inputs.catalogue.user)
    except NotFound as error:
        inputs.wrong(name, f"{error.message} {error.way_out}", code="no-such-upload")
        return None
    if row.state != FolderUploadState.READY:
        inputs.wrong(
            name,
            f"Upload {row.name} is {row.get_state_display()}; finish it, or upload again.",
            code="upload-not-ready",
        )
        return None
    queue = inputs.queue
    if queue is not None and not backend_of(queue.cluster).capabilities.takes_uploads:
        inputs.wrong(
            name,
            f"Queue {queue.slug} runs jobs by a backend that takes no uploads; use another queue.",
            code="no-uploads-here",
        )
        return None
    found: UUID = row.pk
    return found


def read_image(inputs: Any, name: str) -> str | None:
    """The name of a container image; some backends run none, and others need one."""
    image = inputs.text(name, most=MAX_IMAGE)
    if image and not _IMAGE.fullmatch(image):
        inputs.wrong(
            name, "Is no name of an image, such as python:3.12 or ghcr.io/acme/train:2.1.", code="bad-image"
        )
        return None
    queue = inputs.queue
    if queue is None:
        return image or None
    can = capabilities_of(inputs.catalogue.backend_of(queue))
    if image and not can.runs_images:
        inputs.wrong(
            name,
            f"Queue {queue.slug} runs no container images; leave image out, or use another queue.",
            code="no-images-here",
        )
    elif not image and can.needs_image:
        inputs.wrong(
            name, f"Queue {queue.slug} runs each job in a container: name its image.", code="image-needed"
        )
    return image or None


#: What a backend may lack, by its capability: the words for a refusal.
_LACKS: Final = {
    "keeps_files": "keeps no files of jobs",
    "makes_checkpoints": "makes no checkpoints",
    "runs_probes": "runs no probes",
    "writes_output_files": "writes the output to the log alone",
    "binds_numa": "binds no task to a NUMA domain",
    "runs_elements": "runs one element of an array a job",
    "sends_limit_signals": "sends no signal before the time limit",
    "resizes": "cannot make a job that runs smaller",
}


def refuse_what_backend_lacks(inputs: Any, name: str, capability: str) -> None:
    """A field that the backend of the job's queue would not act on is refused, and says so."""
    queue = inputs.queue
    if queue is None or getattr(capabilities_of(inputs.catalogue.backend_of(queue)), capability):
        return
    inputs.wrong(
        name,
        f"Queue {queue.slug} runs jobs by the backend {queue.cluster.get_backend_display()}, which "
        f"{_LACKS[capability]}; leave {name} out, or use another queue.",
        code="backend-lacks",
    )


def read_working_dir(inputs: Inputs, name: str) -> str:
    """An absolute path."""
    path = inputs.text(name, most=MAX_PATH)
    if path and not path.startswith("/"):
        inputs.wrong(name, "Must be an absolute path, beginning with /.", code="not-absolute")
    return path


def read_artifacts(inputs: Any, name: str) -> list[str]:
    """Patterns of files in the working folder."""
    found: list[str] = []
    if inputs.given(name) is not None and inputs.queue is not None:
        refuse_what_backend_lacks(inputs, name, "keeps_files")
    for number, value in enumerate(inputs.listing(name, most=MAX_ARTIFACTS)):
        try:
            if not isinstance(value, str):
                raise BadPattern("Must be text, such as out/*.csv")
            FilePattern.of(value)
        except BadPattern as error:
            inputs.wrong(f"{name}/{number}", f"{error}.", code="bad-pattern")
        else:
            found.append(value)
    return found


def read_mail_types(inputs: Inputs, name: str) -> str | None:
    """Words of --mail-type as the row of the job keeps them; None where the job leaves it to its owner."""
    try:
        return parse_mail_types(inputs.text(name, most=MAX_MAIL_TYPES)) or None
    except ValueError as error:
        inputs.wrong(name, f"{str(error)[:1].upper()}{str(error)[1:]}.", code="unknown-choice")
        return None


def read_job_type(inputs: Inputs, name: str) -> str:
    """One short word, in any case."""
    found: str = inputs.read(name, _job_type, default="batch")
    return found


def _job_type(value: Any) -> str:
    word = str(value).strip().lower()
    if not _WORD.fullmatch(word):
        raise BadValue("Must be one short word of a-z, 0-9, - and _, such as batch or training")
    return word


def read_ref(inputs: Inputs, name: str) -> str:
    """The name of a job among those of one request."""
    found: str = inputs.read(name, _ref, default="")
    return found


def _ref(value: Any) -> str:
    word = str(value).strip()
    if not DATA_NAME.fullmatch(word):
        raise BadValue("Must be a short name without blanks, such as prepare")
    return word


def read_cpu_cores(inputs: Any, name: str) -> int:
    """Thousandths of a core; a job with a limit and no request requests as much as the limit."""
    millis: int = inputs.read(
        name, cores_to_millis, default=inputs.draft.cpu_limit_millis or DEFAULT_CPU_MILLIS
    )
    return millis


def read_memory(inputs: Any, name: str) -> int:
    """MiB, as for CPU cores; of the three names for it one at most."""
    given = [spelling for spelling in MEMORY_UNITS if inputs.given(spelling) is not None]
    if len(given) > 1:
        inputs.wrong(given[1], f"Repeats the memory of {given[0]}; give one of them.", code="one-of")
    if not given:
        return inputs.draft.memory_limit_mib or DEFAULT_MEMORY_MIB
    unit = MEMORY_UNITS[given[0]]
    mib: int = inputs.read(given[0], lambda v: parse_mib(v, bare_unit=unit), default=DEFAULT_MEMORY_MIB)
    return mib


def read_gpu_slice(inputs: Inputs, name: str) -> str:
    """The name of a slice; it may also stand in the model: `gpu_type: "H100 1g.10gb"`."""
    asked = inputs.given("gpu_type")
    named = read_slice(asked) if isinstance(asked, str) else None
    found: str = inputs.read(name, _slice, default=named[1] if named else "")
    return found


def _slice(value: Any) -> str:
    found = read_slice(value) if isinstance(value, str) else None
    if found is None or found[0]:
        raise BadValue("Must be the name of a slice, such as 1g.10gb")
    return found[1]


def read_gpu_share(inputs: Any, name: str) -> int:
    """Thousandths of one GPU; 0 beside a slice, which is a part already."""
    if inputs.draft.gpu_slice:
        inputs.wrong(name, "Cannot be combined with a slice; leave one of them out.", code="one-of")
        return 0
    millis: int = inputs.read(name, share_of_gpu, default=0)
    return millis


def share_of_gpu(value: Any) -> int:
    """Thousandths of one GPU from `0.25` or `"25%"`; raises BadValue."""
    if isinstance(value, str) and value.strip().endswith("%"):
        part = read_decimal(value.strip()[:-1]) / 100
    else:
        part = read_decimal(value)
    if not 0 < part <= 1:
        raise BadValue("Must be more than 0 and at most 1, the part of one GPU; for example 0.25")
    millis = part * 1000
    if millis != int(millis):
        raise BadValue("Is finer than a thousandth of a GPU")
    return int(millis)


def read_extras(inputs: Inputs, name: str) -> dict[str, int]:
    """Named countable things and how many of each, by name; those of which there are 0 are left out."""
    found: dict[str, int] = {}
    for thing, value in inputs.mapping(name, most=MAX_EXTRAS).items():
        amount = read_integer(value)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", str(thing)):
            inputs.wrong(f"{name}/{str(thing)[:60]}", "Not a name of a countable resource.", code="bad-name")
        elif amount is None or not 0 <= amount <= MAX_EXTRA:
            inputs.wrong(f"{name}/{thing}", "Must be a whole number, 0 or more.", code="not-a-number")
        elif amount:
            found[str(thing)] = amount
    return dict(sorted(found.items()))


def qos_word(job: Any) -> str:
    """The class of service of a job's row: guaranteed, burstable or best-effort."""
    return QOS_WORDS[
        qos_of(
            cpu_millis=job.cpu_millis,
            memory_mib=job.memory_mib,
            cpu_limit_millis=job.cpu_limit_millis or 0,
            memory_limit_mib=job.memory_limit_mib or 0,
        )
    ]
