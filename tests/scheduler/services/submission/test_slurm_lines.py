"""Lines of scripts that a real Slurm 22.05 was given: what it refuses is refused here, what it takes is taken.

Slurm had four nodes of 8 CPUs and 16,000 MB, two of them with four a100, and the features of the world of
`slurm_answers`. The lines come from the list of options in its manual.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pytest
import time_machine
from pytest_django.fixtures import Settings

from infra.errors import MusterError
from scheduler.services.submission.job_spec import JobSpec
from scheduler.services.submission.parse_request import parse_job
from scheduler.services.submission.sbatch.parse_sbatch import parse_sbatch
from tests.scheduler.services.submission.slurm_answers import World, a_world

pytestmark = pytest.mark.django_db

#: Directives of one script each; several of one script are apart by `;`.
#: Slurm refuses these.
REFUSED: Final = (
    "-t 1.5",
    "-t 2h",
    "-t 1:2:3:4",
    "-t +10",
    "--mem=2GiB",
    "--mem=1.5G",
    "--mem=1T",
    "--mem=-1",
    "--mem=",
    "--mem-per-gpu=2G",
    "--mem-per-cpu=1G; --mem-per-gpu=2G; -G 1",
    "-a 5-1",
    "-a 1-5:0",
    "-a 1-3, 5",
    "-a 0x3",
    "-N 3-2",
    "-N 1,2",
    "-N 0",
    "-n 0",
    "-n four",
    "-c 0",
    "-c 9",
    "-N 1; --ntasks-per-node=9",
    "--gres=gpu:v100:1",
    "--gres=tpu:1",
    "--gres=gpus:1",
    "--gres=gpu:1k",
    "--gres=gpu:-1",
    "--gpus-per-task=1",
    "--gpus=4; --gpus-per-task=1; -n 2",
    "-G 2; --cpus-per-gpu=3; -c 2",
    "-G 1; --gres=gpu:2",
    "-C ib*1&a100*1; -N 2",
    "-C broadwell",
    "-C ",
    "-w node1; -x node1",
    "-x node[1-4]",
    "-w nodeX",
    "-x nodeX",
    "--begin=now+1months",
    "--ntasks-per=2",
    "--time = 5",
    "-J a\\ b",
    "-c 2 main",
    "-",
    "-- -c 4",
    "--gpu=1",
    "-Y 3",
    "--signal=FOO@10",
    "--signal=USR1@-5",
    "--signal=USR1@70000",
    "--nice=2147483646",
    "--deadline=2001-01-01",
    "-A nosuch",
    "-q nosuch",
    "-p Main",
    "-p short, main",
    "--mail-type=SOMETIMES",
    "--exclusive=node",
    "-J ''",
    "-L matlab:9",
    "-L nosuch",
    "--reservation=nosuch",
    "--tmp=1G",
    "--hint=fast",
    "--threads-per-core=2",
    "-m round",
    "--time-min=15; -t 10",
    "-d afterok:1, afterok:2",
    "-d expand:1",
)

#: Slurm takes these; some wait for ever there, since they ask for more than the partition has.
TAKEN: Final = (
    "-t 2-",
    "-t 1-0",
    "-t 0-1:30",
    "-t 0-01:02:03",
    "--time=90:30",
    "--time=00:00:30",
    "-t UNLIMITED -p main",
    "-t infinite -p main",
    "-t 0:90",
    "--mem=2g",
    "--mem=2GB",
    "--mem 2G",
    "--mem=2048K",
    "--mem-per-cpu=1G; -c 4",
    "--mem-per-gpu=2G; --gres=gpu:2",
    "--mem=0; -N 2",
    "-a 1,1,2",
    "-a 1-3,2-5",
    "-a 1-5:10",
    "-a [1-2,7]",
    "-a 4",
    "-a 0",
    "-a 1-3; -a 5-6",
    "-a 1-2%0",
    "-N 1-2",
    "-n +3",
    "-N 2; -n 1",
    "-N 2; --ntasks-per-node=2; -c 4",
    "-n 9; -c 4",
    "-n 6; --ntasks-per-node=3",
    "--gres=gpu:0",
    "--gres=none",
    "--gres=gpu:1,gpu:2",
    "--gres=gpu:a100:2",
    "-N 2; --gpus-per-node=2",
    "-n 3; --gpus-per-task=1",
    "-G 2; --cpus-per-gpu=3",
    "-C haswell&ib",
    "-C ib|a100",
    "-C (haswell|skylake)&ib",
    "-C haswell,ib",
    "-w node[1-2]; -N 2",
    "-w node[1,3-4]; -N 3",
    "--begin=tomorrow",
    "--begin=noon",
    "--begin=now+2hours",
    "--begin=now+90",
    "--begin=now+1weeks",
    "--begin=11:30pm",
    "--begin=2030-01-02",
    "--begin=12/31/30",
    "--begin=01/02",
    "--begin=2001-01-01T00:00",
    "--begin=teatime",
    "--begin=now-1hour",
    "-c4",
    "--ntasks-per-n=2",
    '--job-name="a b"',
    "-J 'it is'",
    "-c 2 # two",
    "-c 2#two",
    "-Hc2",
    "--requeue; --no-requeue",
    "--no-requeue",
    "-H",
    "--signal=USR1@60",
    "--signal=B:10@30",
    "--signal=USR2",
    "--signal=RB:USR1@30",
    "--nice=1.5",
    "--nice",
    "--priority=TOP",
    "--deadline=now+2hours; -t 10",
    "-A PHYSICS",
    "-p short,main",
    "--mail-type=end,FAIL,TIME_LIMIT_80",
    "--mail-type=NONE",
    "--exclusive; -c 2",
    "-s; -p short",
    "-J a%j",
    "-J a/b",
    "-J späße",
    "--comment='naïve, =x'",
    "--tmp=0",
    "--wckey=abc",
    "--mincpus=4",
    "--mincpus=4; -n 2",
    "--hint=nomultithread",
    "--threads-per-core=1; -c 4",
    "--time-min=5; -t 10",
    "--contiguous; -N 2",
    "--switches=1; -N 2",
)

#: Slurm takes these as well, and this portal refuses them.
NOT_HERE: Final = {
    "-a 1-5%-1": "a throttle below zero has no meaning",
    "-a 1-3%2,5-7%1": "an array has one throttle",
    "-C [rack1|rack2]; -N 2": "nodes that all have the same one of several features cannot be requested",
    "-N 1k": "a number of nodes has no unit",
    "-t -5": "a time below zero is no limit there, and a slip here",
    "-L matlab:0": "licenses of the whole cluster do not exist",
}


@pytest.fixture
def slurm_world(settings: Settings) -> World:
    settings.MUSTER_STORAGE, settings.CHECKPOINT_PATH = "", ""
    settings.MUSTER_MAX_ARRAY_SIZE = 1001
    return a_world()


def read(world: World, lines: str) -> JobSpec:
    script = "#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in lines.split("; ")) + "sleep 30\n"
    payload, _ = parse_sbatch(script, by=world.user, args=[], file_name="job.sh")
    return parse_job(payload, by=world.user)


def answers(world: World, scripts: Any) -> dict[str, str]:
    """What is said of each that is refused."""
    found = {}
    for lines in scripts:
        try:
            read(world, lines)
        except MusterError as error:
            found[lines] = error.message
    return found


def test_nothing_that_slurm_refuses_is_taken(slurm_world: World) -> None:
    assert set(REFUSED) - answers(slurm_world, REFUSED).keys() == set()


def test_what_slurm_takes_is_taken(slurm_world: World) -> None:
    refused = answers(slurm_world, TAKEN)
    assert {lines: why for lines, why in refused.items() if not any(word in why for word in _BY_SITE)} == {}
    assert answers(slurm_world, NOT_HERE).keys() == NOT_HERE.keys()


#: Larger than a queue or than what is there: a site decides whether such a job waits or is refused.
_BY_SITE: Final = ("allows", "at most", "can ever", "No node", "never")


def test_lines_mean_what_they_mean_there(slurm_world: World) -> None:
    with time_machine.travel(datetime(2027, 3, 4, 15, 30, tzinfo=UTC), tick=False):
        assert read(slurm_world, "--begin=tomorrow").begin_at == datetime(2027, 3, 5, tzinfo=UTC)
    assert read(slurm_world, "-n +3").tasks == 3
    assert read(slurm_world, "-c 2#two").cpu_millis == 2000
    assert read(slurm_world, "-J a\\#b").name == "a#b"
    asked = read(slurm_world, "--signal=B:10@30")
    assert (asked.limit_signal, asked.checkpoint) == ({"signal": "USR1", "to": "shell", "before": 30}, {})
    assert read(slurm_world, "--signal=USR2").limit_signal == {"signal": "USR2", "to": "all", "before": 60}
