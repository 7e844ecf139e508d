"""The rules between fields of a job request, each a sentence and a function; the order is that of the problems.

A rule finds in the draft what was read, or the default of what was left out or refused; it adds problems to the
inputs, or fills what follows from other fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.utils import timezone

from infra.plain_text import without_hidden
from infra.times_in_text import written
from quotas.core.gpu_models import read_slice, slice_share
from quotas.core.resources import show_cpus, show_mib
from scheduler.core.lifecycle import DeadlineAction, PackLevel, RestartPolicy, TaskFailure
from scheduler.core.restart_rules import DEFAULT_DELAY, DEFAULT_DELAY_MAX, RestartAction
from scheduler.core.snapshot.relaxation import WORDS, Relaxable
from scheduler.models import Reservation
from scheduler.services.submission.declaration import Rule, rule
from scheduler.services.submission.fields_reservation import earliest_inside, slots_inside
from scheduler.services.submission.fields_restart import ProbeKind
from scheduler.services.submission.fields_task import MEMORY_UNITS, refuse_what_backend_lacks

if TYPE_CHECKING:
    from scheduler.services.submission.job_spec import JobSpec, RequestInputs

#: One task row and one process each.
MAX_TASKS: Final = 10_000
#: Elements of one job: what it has done is seen in a part of its run.
MAX_ELEMENTS: Final = 1_000

# ---------------------------------------------------------------- what runs


@rule("command", "script")
def a_job_runs_one_thing(spec: JobSpec, inputs: RequestInputs) -> None:
    """A job runs a command or a script, one of the two; a script names its interpreter."""
    if inputs.given("command") is None and inputs.given("script") is None:
        inputs.wrong("command", "Nothing to run; give command (for /bin/sh -c) or script.", code="required")
    elif spec.command and spec.script:
        inputs.wrong("script", "Has both command and script; give one of them.", code="one-of")
    elif spec.script and not spec.script.startswith("#!"):
        inputs.wrong("script", "Must begin with #! and its interpreter, as in #!/bin/sh.", code="no-shebang")
    elif "\r" in spec.script.partition("\n")[0]:
        text = (
            "Line 1 ends with a carriage return, as in files from Windows, and the kernel would look for an "
            "interpreter of that name. Save the script with line feeds alone (dos2unix)."
        )
        inputs.wrong("script", text, code="carriage-return")


@rule("artifacts", "working_dir")
def artefacts_are_of_the_jobs_own_folder(spec: JobSpec, inputs: RequestInputs) -> None:
    """Artefacts are files of the folder that Muster makes for the job, not of a `working_dir`."""
    if spec.artifacts and spec.working_dir:
        inputs.wrong(
            "artifacts",
            "Muster reads nothing in a working_dir; leave working_dir out, or copy the files in the job.",
            code="inconsistent",
        )
    elif spec.artifacts and not settings.MUSTER_STORAGE:
        inputs.wrong(
            "artifacts",
            "This site has no storage for artefacts (MUSTER_STORAGE); leave artifacts out: files stay on the node.",
            code="no-storage",
        )


@rule("standard_output", "standard_error", "elements_per_job")
def elements_have_no_output_file_in_common(spec: JobSpec, inputs: RequestInputs) -> None:
    """Elements that share a job have each its own output, and no file of the job."""
    if spec.elements_per_job and (spec.output_path or spec.error_path):
        inputs.wrong(
            "standard_output" if spec.output_path else "standard_error",
            "Has no meaning with elements_per_job: each element has a log of its own. Leave one of them out.",
            code="inconsistent",
        )


# ---------------------------------------------------------------- layout


@rule("tasks", "nodes", "tasks_per_node")
def nodes_hold_the_tasks(spec: JobSpec, inputs: RequestInputs) -> None:
    """A job has no more nodes than tasks, and room for its tasks on its nodes."""
    tasks, nodes, per_node = spec.tasks, spec.nodes, spec.tasks_per_node
    if not tasks or nodes is None:
        return
    if nodes > tasks:
        inputs.wrong(
            "nodes", f"Requests {nodes} nodes but has only {tasks} tasks; lower nodes.", code="inconsistent"
        )
    elif per_node is not None and tasks > nodes * per_node:
        inputs.wrong(
            "tasks",
            f"Has {tasks} tasks, but {nodes} nodes with {per_node} each hold {nodes * per_node}.",
            code="inconsistent",
        )


@rule("tasks", "nodes", "tasks_per_node")
def tasks_follow_from_nodes(spec: JobSpec, inputs: RequestInputs) -> None:
    """Left out, `tasks` is `nodes` times `tasks_per_node`, each 1 where it is left out too."""
    if spec.tasks:
        return
    spec.tasks = (spec.nodes or 1) * (spec.tasks_per_node or 1)
    if spec.tasks > MAX_TASKS:
        inputs.wrong(
            "tasks_per_node",
            f"Makes {spec.tasks} tasks; the maximum is {MAX_TASKS}.",
            code="out-of-range",
        )
        spec.tasks = 1


@rule("min_tasks", "nodes", "tasks_per_node")
def an_open_size_leaves_nodes_open(spec: JobSpec, inputs: RequestInputs) -> None:
    """A job that may start with fewer tasks asks for no number of nodes that these could not fill."""
    least, nodes = spec.min_tasks, spec.nodes
    if least is not None and nodes is not None and (spec.tasks_per_node is not None or least < nodes):
        inputs.wrong(
            "min_tasks",
            f"min_tasks leaves the size open, but nodes requests {nodes}; leave nodes out, or request a fixed size.",
            code="inconsistent",
        )


@rule("elastic", "min_tasks", "tasks")
def an_elastic_job_has_room_to_change(spec: JobSpec, inputs: RequestInputs) -> None:
    """An elastic job has fewer `min_tasks` than `tasks`."""
    if spec.elastic and (spec.min_tasks is None or spec.min_tasks == spec.tasks):
        inputs.wrong(
            "elastic",
            "An elastic job needs min_tasks less than tasks.",
            code="inconsistent",
        )


@rule("on_task_failure", "min_tasks")
def going_on_needs_a_least_size(spec: JobSpec, inputs: RequestInputs) -> None:
    """A job whose other tasks continue after a failure says with how few: `min_tasks`."""
    if spec.on_task_failure == TaskFailure.CONTINUE and spec.min_tasks is None:
        inputs.wrong(
            "on_task_failure",
            "Continuing with fewer tasks needs min_tasks.",
            code="inconsistent",
        )


@rule("pack", "nodes")
def one_node_is_not_several(spec: JobSpec, inputs: RequestInputs) -> None:
    """A job that has to be on one node asks for no more of them."""
    if spec.pack.level == PackLevel.NODE and spec.pack.required and spec.nodes is not None and spec.nodes > 1:
        inputs.wrong("pack", f"Requires one node, but nodes requests {spec.nodes}.", code="inconsistent")


@rule("min_tasks", "tasks", "on_task_failure")
def the_whole_size_is_no_least_size(spec: JobSpec, inputs: RequestInputs) -> None:
    """`min_tasks` equal to `tasks` means something only where the others continue after a failure."""
    if spec.min_tasks == spec.tasks and spec.on_task_failure != TaskFailure.CONTINUE:
        spec.min_tasks = None


# ---------------------------------------------------------------- how much


@rule("cpu_cores", "memory")
def nothing_is_requested_of_both_or_of_none(spec: JobSpec, inputs: RequestInputs) -> None:
    """Only a job that requests neither CPU nor memory may say 0, for both."""
    if (spec.cpu_millis < 1) == (spec.memory_mib < 1):
        return
    names = ("cpu_cores",) if spec.cpu_millis < 1 else tuple(MEMORY_UNITS)
    inputs.wrong(
        next((name for name in names if inputs.given(name) is not None), names[0]),
        "Must be more than 0; 0 is allowed only for both CPU and memory.",
        code="out-of-range",
    )


@rule("gpu_slice", "gpu_count", "gpu_share")
def a_slice_is_one_a_task(spec: JobSpec, inputs: RequestInputs) -> None:
    """With a slice, `gpu_count` is 1: programs see only one, however many they are given."""
    if not spec.gpu_slice:
        return
    if spec.gpus not in (None, 1):
        inputs.wrong("gpu_count", "Must be 1 with a slice: each task gets one of them.", code="inconsistent")
    share = slice_share(spec.gpu_slice)
    spec.gpus, spec.gpu_millis = 1, share if share < 1000 else 0


@rule("gpu_slice", "gpu_count", "gpu_share")
def a_share_is_of_one_gpu(spec: JobSpec, inputs: RequestInputs) -> None:
    """A share is a part of one GPU, so `gpu_count` is 1; a share of 1 is the whole GPU."""
    if spec.gpu_slice:
        return
    if spec.gpu_millis:
        if spec.gpus not in (None, 1):
            inputs.wrong(
                "gpu_share", f"Requests a share of one GPU, but gpu_count is {spec.gpus}; make it 1.",
                code="inconsistent",
            )  # fmt: skip
        spec.gpus, spec.gpu_millis = 1, spec.gpu_millis if spec.gpu_millis < 1000 else 0
    spec.gpus = spec.gpus or 0


@rule("gpu_type", "gpu_slice", "gpu_count", "gpu_share")
def a_model_needs_a_count(spec: JobSpec, inputs: RequestInputs) -> None:
    """A GPU model says how many, or which part, is asked for; without GPUs it is left out."""
    if spec.gpu_slice:
        spec.gpu_model = (read_slice(spec.gpu_model) or (spec.gpu_model, ""))[0]
    if spec.gpu_model and not spec.gpus and inputs.given("gpu_count") is None:
        inputs.wrong("gpu_type", "Names a GPU model but no count; add gpu_count.", code="inconsistent")
    if not spec.gpus:
        spec.gpu_model = ""


@rule("cpu_limit", "cpu_cores", "memory_limit", "memory", "extras")
def limits_hold_the_requests(spec: JobSpec, inputs: RequestInputs) -> None:
    """A limit is not below the request: it would stop a job that takes no more than was promised to it."""
    for name, limit, request, show in (
        ("cpu_limit", spec.cpu_limit_millis, spec.cpu_millis, show_cpus),
        ("memory_limit", spec.memory_limit_mib, spec.memory_mib, show_mib),
    ):
        if limit is not None and limit < request:
            inputs.wrong(
                name,
                f"Is {show(limit)}, but {show(request)} is requested; raise the limit or request less.",
                code="inconsistent",
            )


# ---------------------------------------------------------------- when


@rule("begin_at", "deadline")
def the_deadline_lies_ahead(spec: JobSpec, inputs: RequestInputs) -> None:
    """A deadline lies in the future, and after `begin_at`."""
    if spec.deadline_at is None:
        return
    if spec.deadline_at <= timezone.now():
        inputs.wrong("deadline", "Is in the past.", code="in-the-past")
    elif spec.begin_at is not None and spec.deadline_at <= spec.begin_at:
        inputs.wrong("deadline", "Is before begin_at.", code="inconsistent")


@rule("assembly_timeout", "tasks", "queue")
def the_queue_says_how_long_gangs_gather(spec: JobSpec, inputs: RequestInputs) -> None:
    """An assembly timeout that is left out is the queue's default, for a job of several tasks; 0 is none."""
    if spec.assembly_timeout_seconds == 0:
        spec.assembly_timeout_seconds = None
    elif inputs.queue is not None and spec.tasks > 1 and inputs.given("assembly_timeout") is None:
        spec.assembly_timeout_seconds = inputs.queue.default_assembly_seconds


@rule("deadline", "deadline_action")
def only_a_deadline_ends_a_job(spec: JobSpec, inputs: RequestInputs) -> None:
    """`deadline_action` is of a job that has a deadline."""
    if spec.deadline_action == DeadlineAction.END and inputs.given("deadline") is None:
        inputs.wrong(
            "deadline_action", "There is no deadline; add deadline, or leave this out.", code="inconsistent"
        )


@rule("wait_limit", "queue")
def the_queue_says_how_long_jobs_wait(spec: JobSpec, inputs: RequestInputs) -> None:
    """A wait limit that is left out is the queue's default."""
    if inputs.queue is not None and inputs.given("wait_limit") is None:
        spec.wait_limit_seconds = inputs.queue.default_wait_seconds


@rule("time_limit", "queue")
def the_queue_bounds_the_time(spec: JobSpec, inputs: RequestInputs) -> None:
    """A time limit is at most the queue's; left out, it is the queue's default."""
    queue, seconds = inputs.queue, spec.time_limit_seconds
    if queue is None:
        return
    most = queue.max_wall_seconds  # and no more than the longest of its partitions allows (`Catalogue`)
    if seconds is None:
        seconds = queue.default_wall_seconds
        spec.time_limit_seconds = seconds if most is None else min(seconds or most, most)
    elif most is not None and seconds > most:
        inputs.wrong(
            "time_limit",
            f"Requests {seconds} seconds; queue {queue.slug} allows {most}. "
            "Ask for less, or use another queue.",
            code="exceeds-wall-time",
        )


@rule("deadline", "deadline_action", "time_limit", "begin_at")
def what_ends_at_its_deadline_can_end_in_time(spec: JobSpec, inputs: RequestInputs) -> None:
    """With `deadline_action` end, the time limit ends before the deadline."""
    if spec.deadline_action != DeadlineAction.END or spec.deadline_at is None or not spec.time_limit_seconds:
        return
    start = max(timezone.now(), spec.begin_at) if spec.begin_at else timezone.now()
    late = int((start - spec.deadline_at).total_seconds()) + spec.time_limit_seconds
    if late > 0 and spec.deadline_at > timezone.now():
        inputs.wrong(
            "deadline",
            f"Is {spec.time_limit_seconds - late} s after the earliest start, but the time limit is "
            f"{spec.time_limit_seconds} s: with deadline_action end the job could never start. Shorten time_limit, "
            "move the deadline, or leave deadline_action out.",
            code="deadline-too-early",
        )


# ---------------------------------------------------------------- the rest


@rule("name", "command", "script")
def a_name_comes_from_what_runs(spec: JobSpec, inputs: RequestInputs) -> None:
    """Left out, the name is the first line of what runs that says something."""
    if spec.name:
        return
    spec.name = "job"
    for line in map(str.strip, (spec.command or spec.script).splitlines()):
        if line and not line.startswith("#"):
            spec.name = without_hidden(line[:60]).strip() or "job"
            return


@rule("restart_policy", "on_task_failure", "elastic", "restart_rules")
def at_most_once_is_never_again(spec: JobSpec, inputs: RequestInputs) -> None:
    """A job whose restart policy is `never` asks for nothing that would start it again."""
    if spec.restart_policy != RestartPolicy.NEVER:
        return
    says = "A job with restart_policy never runs at most once, and this setting would restart it; "
    if spec.on_task_failure == TaskFailure.REQUEUE:
        inputs.wrong(
            "on_task_failure", says + "use fail or continue, or another restart_policy.", code="inconsistent"
        )
    if spec.elastic:
        inputs.wrong(
            "elastic", says + "leave elastic out, or use another restart_policy.", code="inconsistent"
        )
    if any(one["action"] == RestartAction.RESTART for one in spec.restart_rules):
        inputs.wrong(
            "restart_rules", says + "use the action fail, or another restart_policy.", code="inconsistent"
        )


@rule("restart_delay", "restart_delay_max")
def delays_grow(spec: JobSpec, inputs: RequestInputs) -> None:
    """The longest wait before a restart is no shorter than the first."""
    first, longest = spec.restart_delay_seconds, spec.restart_delay_max_seconds
    if longest is not None and longest < (first or DEFAULT_DELAY):
        inputs.wrong(
            "restart_delay_max",
            f"Must be at least restart_delay, which is {first or DEFAULT_DELAY} seconds.",
            code="inconsistent",
        )
    elif longest is None and first is not None and first > DEFAULT_DELAY_MAX:
        inputs.wrong(
            "restart_delay",
            f"The longest wait before a restart is {DEFAULT_DELAY_MAX} seconds; give restart_delay_max as well.",
            code="inconsistent",
        )


@rule("elements_per_job", "array", "tasks", "elastic", "restart_policy", "restart_rules")
def elements_share_a_plain_job(spec: JobSpec, inputs: RequestInputs) -> None:
    """`elements_per_job` is of an array, whose jobs have one task and restart only after an interruption."""
    if spec.elements_per_job is None:
        return
    wrong = {
        "array": not spec.array.indices and "Give the array whose elements share jobs.",
        "tasks": spec.tasks > 1
        and "Elements that share a job have one task; leave tasks out, or elements_per_job.",
        "elastic": spec.elastic and "Elements that share a job have one task; leave elastic out.",
        "restart_policy": spec.restart_policy != RestartPolicy.INTERRUPTED
        and "Elements that share a job start again only after an interruption; leave restart_policy out.",
        "restart_rules": spec.restart_rules
        and "Elements that share a job start again only after an interruption; leave restart_rules out.",
    }
    for name, message in wrong.items():
        if message:
            inputs.wrong(name, message, code="required" if name == "array" else "inconsistent")


@rule("elements_per_job", "time_limit")
def a_limit_is_of_each_element(spec: JobSpec, inputs: RequestInputs) -> None:
    """With `elements_per_job`, `time_limit` is of each element, and the job has that for each of its elements."""
    if spec.elements_per_job is not None and spec.time_limit_seconds is not None:
        spec.element_limit_seconds = spec.time_limit_seconds
        spec.time_limit_seconds *= min(spec.elements_per_job, len(spec.array.indices) or 1)


@rule("probes", "gpu_count", "elements_per_job")
def probes_have_what_they_check(spec: JobSpec, inputs: RequestInputs) -> None:
    """A probe of kind gpu needs a GPU, and elements that share a job have no probes."""
    if spec.probes and spec.elements_per_job is not None:
        inputs.wrong(
            "probes",
            "Elements that share a job run one after another and have no probes; leave probes or elements_per_job out.",
            code="inconsistent",
        )
    if not spec.gpus and any(probe["kind"] == ProbeKind.GPU for probe in spec.probes):
        inputs.wrong(
            "probes", "A probe of kind gpu needs a job with GPUs; add gpu_count.", code="inconsistent"
        )


@rule("depends_on", "ref")
def refs_are_of_one_request(spec: JobSpec, inputs: RequestInputs) -> None:
    """Only jobs that are sent together name each other by `ref`."""
    stranger = next((d.ref for d in spec.depends_on if d.ref), "")
    if stranger and not inputs.in_batch:
        inputs.wrong(
            "depends_on",
            f"Names {stranger!r} by ref, but the request has no other job; give the job's number.",
            code="not-found",
        )


@rule("affinity", "tasks", "nodes", "tasks_per_node", "pack")
def tasks_can_keep_their_spread(spec: JobSpec, inputs: RequestInputs) -> None:
    """A rule about the job's own tasks is one that they can keep, and takes the place of nodes and pack."""
    term = spec.affinity.get("tasks")
    if not term:
        return
    tasks = spec.tasks
    if spec.nodes is not None or spec.tasks_per_node is not None or inputs.given("pack") is not None:
        inputs.wrong(
            "affinity/tasks",
            "Cannot be combined with nodes, tasks_per_node or pack; leave those out and give tasks.",
            code="inconsistent",
        )
    elif term.get("least", 1) > tasks:
        inputs.wrong(
            "affinity/tasks",
            f"Requests {term['least']} of a kind, but has {tasks} task{'s' if tasks > 1 else ''}; raise tasks.",
            code="inconsistent",
        )
    elif term.get("per_domain", tasks) * term.get("most", tasks) < tasks:
        inputs.wrong(
            "affinity/tasks",
            f"Allows {term['per_domain'] * term['most']} tasks in all, but has {tasks}.",
            code="inconsistent",
        )


@rule(
    "relax", "pack", "affinity", "node_selector", "gpu_type", "gpu_slice", "numa", "restart_policy", "queue"
)
def what_is_relaxed_is_there(spec: JobSpec, inputs: RequestInputs) -> None:
    """`relax` names constraints of the request, each once; left out, its preferences, for as long as the queue says."""
    there = constraints_of(spec)
    wait = inputs.queue.preference_wait_seconds if inputs.queue is not None else None
    if inputs.given("relax") is None:
        names = [name for name, required in there.items() if not required] if wait else []
        spec.relax = [{"constraint": name.value, "after": wait} for name in names]
        return
    for number, one in enumerate(spec.relax):
        name = one["constraint"]
        if name in [other["constraint"] for other in spec.relax[:number]]:
            inputs.wrong(f"relax/{number}/constraint", f"{name} is named twice.", code="one-of")
        elif name and name not in there:
            text = f"The request does not ask for {WORDS[Relaxable(name)]}; leave this entry out."
            inputs.wrong(f"relax/{number}/constraint", text, code="inconsistent")
        elif "after_failures" in one and spec.restart_policy == RestartPolicy.NEVER:
            text = (
                "The job runs at most once (restart_policy never), so nothing follows a failure; give after."
            )
            inputs.wrong(f"relax/{number}/after_failures", text, code="inconsistent")


def constraints_of(spec: JobSpec) -> dict[Relaxable, bool]:
    """The constraints of a request that may be relaxed, and whether each is required without `relax`."""
    terms = spec.affinity
    jobs, tasks = terms.get("jobs") or (), terms.get("tasks") or {}
    found = {
        Relaxable.PACK: (bool(spec.pack.level), spec.pack.required),
        Relaxable.PREFERRED: (bool(terms.get("preferred")), False),
        Relaxable.REQUIRED: (bool(terms.get("required")), True),
        Relaxable.JOBS: (bool(jobs), not all(term.get("weight") for term in jobs)),
        Relaxable.TASKS: (bool(tasks), not tasks.get("soft")),
        Relaxable.NODE_SELECTOR: (bool(spec.node_selector), True),
        Relaxable.GPU_TYPE: (bool(spec.gpu_model) and not spec.gpu_slice, True),
        Relaxable.NUMA: (spec.numa == "one", True),
    }
    return {name: required for name, (is_there, required) in found.items() if is_there}


@rule("checkpoint", "elements_per_job")
def checkpoints_have_a_place(spec: JobSpec, inputs: RequestInputs) -> None:
    """A job that makes checkpoints runs one thing, and the site has a storage for them."""
    if not spec.checkpoint:
        return
    if spec.elements_per_job:
        inputs.wrong(
            "checkpoint",
            "A job of several elements has no checkpoints; leave elements_per_job out.",
            code="inconsistent",
        )
    elif not (settings.MUSTER_STORAGE or settings.CHECKPOINT_PATH):
        inputs.wrong(
            "checkpoint",
            "This site has no storage for checkpoints (MUSTER_STORAGE); leave it out, or ask its administrators.",
            code="no-storage",
        )


@rule("limit_signal", "time_limit", "elements_per_job")
def a_signal_has_a_limit_before_it(spec: JobSpec, inputs: RequestInputs) -> None:
    """A signal before the time limit is for a job that has one, and that runs one thing."""
    if not spec.limit_signal:
        return
    if spec.elements_per_job:
        why = "A job of several elements gets no signal before the limit of each; leave elements_per_job out."
        inputs.wrong("limit_signal", why, code="inconsistent")
    elif spec.time_limit_seconds is None and not inputs.problems:
        why = "There is no time limit that the signal could come before; give time_limit, or leave this out."
        inputs.wrong("limit_signal", why, code="inconsistent")


@rule("reservation", "time_limit", "begin_at")
def a_reservation_holds_the_whole_job(spec: JobSpec, inputs: RequestInputs) -> None:
    """A job that names a reservation has a time limit, and is over before the reservation ends."""
    if spec.reservation_id is None:
        return
    found = Reservation.objects.get(pk=spec.reservation_id)
    limit = spec.time_limit_seconds or spec.queue.max_wall_seconds
    if not limit:
        text = f"Required with a reservation: {found.name} ends at {written(found.ends_at)}, and the job before it."
        inputs.wrong("time_limit", text, code="required")
        return
    left = int((found.ends_at - earliest_inside(found, spec.begin_at)).total_seconds())
    if limit > left:
        text = (
            f"Is {limit} s, and reservation {found.name} has {max(left, 0)} s left for the job until it ends at "
            f"{written(found.ends_at)}. Shorten time_limit, or name another reservation."
        )
        inputs.wrong("time_limit", text, code="reservation-too-short")


@rule("reservation", "tasks", "cpu_cores", "memory", "gpu_count")
def a_reservation_is_large_enough(spec: JobSpec, inputs: RequestInputs) -> None:
    """A job that names a reservation of parts of nodes asks for no more than these hold."""
    if spec.reservation_id is None:
        return
    found = Reservation.objects.get(pk=spec.reservation_id)
    slots = slots_inside(found, cpu_millis=spec.cpu_millis, memory_mib=spec.memory_mib, gpus=spec.gpus)
    if slots is not None and slots < spec.least_tasks:
        text = (
            f"Reservation {found.name} holds {slots} tasks of this size, and the job asks for {spec.least_tasks}. "
            "Ask for less, or leave the reservation out."
        )
        inputs.wrong("reservation", text, code="can-never-fit")


@rule("upload", "working_dir")
def an_upload_has_its_own_folder(spec: JobSpec, inputs: RequestInputs) -> None:
    """An upload is put into the folder that Muster makes for the job, not into a `working_dir`."""
    if spec.upload and spec.working_dir:
        inputs.wrong(
            "upload",
            "Muster writes nothing in a working_dir; leave working_dir out, or copy the files in the job.",
            code="inconsistent",
        )


@rule("env", "secrets")
def a_variable_has_one_value(spec: JobSpec, inputs: RequestInputs) -> None:
    """A variable has its value from env or from a secret, not from both."""
    for number, secret in enumerate(spec.secrets):
        if (variable := secret.get("env")) in spec.env:
            inputs.wrong(
                f"secrets/{number}/env", f"{variable} is set in env too; leave it out of one.", code="one-of"
            )


@rule(
    "queue",
    "checkpoint",
    "probes",
    "standard_output",
    "standard_error",
    "numa",
    "elements_per_job",
    "elastic",
    "limit_signal",
)
def the_backend_acts_on_each_field(spec: JobSpec, inputs: RequestInputs) -> None:
    """The backend of the queue acts on all that the job asks for."""
    asked = (
        ("checkpoint", spec.checkpoint, "makes_checkpoints"),
        ("probes", spec.probes, "runs_probes"),
        ("standard_output", spec.output_path, "writes_output_files"),
        ("standard_error", spec.error_path, "writes_output_files"),
        ("numa", spec.numa == "one", "binds_numa"),
        ("elements_per_job", spec.elements_per_job, "runs_elements"),
        ("elastic", spec.elastic, "resizes"),
        ("limit_signal", spec.limit_signal, "sends_limit_signals"),
    )
    for name, is_asked, capability in asked:
        if is_asked:
            refuse_what_backend_lacks(inputs, name, capability)


RULES: Final[tuple[Rule, ...]] = (
    a_job_runs_one_thing,
    a_variable_has_one_value,
    artefacts_are_of_the_jobs_own_folder,
    an_upload_has_its_own_folder,
    nodes_hold_the_tasks,
    tasks_follow_from_nodes,
    an_open_size_leaves_nodes_open,
    an_elastic_job_has_room_to_change,
    going_on_needs_a_least_size,
    one_node_is_not_several,
    the_whole_size_is_no_least_size,
    nothing_is_requested_of_both_or_of_none,
    a_slice_is_one_a_task,
    a_share_is_of_one_gpu,
    a_model_needs_a_count,
    limits_hold_the_requests,
    elements_share_a_plain_job,
    elements_have_no_output_file_in_common,
    a_limit_is_of_each_element,
    the_deadline_lies_ahead,
    the_queue_bounds_the_time,
    the_queue_says_how_long_jobs_wait,
    the_queue_says_how_long_gangs_gather,
    only_a_deadline_ends_a_job,
    what_ends_at_its_deadline_can_end_in_time,
    a_name_comes_from_what_runs,
    at_most_once_is_never_again,
    delays_grow,
    refs_are_of_one_request,
    probes_have_what_they_check,
    tasks_can_keep_their_spread,
    what_is_relaxed_is_there,
    checkpoints_have_a_place,
    a_signal_has_a_limit_before_it,
    a_reservation_holds_the_whole_job,
    a_reservation_is_large_enough,
    the_backend_acts_on_each_field,
)
