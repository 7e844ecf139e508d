"""Constraints that are relaxed (N27) through the API and the door for scripts."""

from __future__ import annotations

from scheduler.models import Job, Node
from tests.scheduler.api.conftest import Api
from tests.scheduler.portal import Portal

SCRIPT = "#!/bin/sh\n#SBATCH -n 2\n#SBATCH -c 9\n#SBATCH --switches=1@10:00\n#SBATCH --relax={}\nhostname\n"


def test_a_script_asks_for_one_switch_for_a_time_and_the_api_shows_what_is_relaxed(
    portal: Portal, api: Api
) -> None:
    Node.objects.update(rack="r1")
    client = api(portal.cast.owner)
    refused = client.post("/api/v1/slurm/sbatch", {"script": SCRIPT.format("gpu_type,after=5m")})
    assert [one["code"] for one in refused.json()["errors"]] == ["inconsistent"]

    script = "\n".join(line for line in SCRIPT.splitlines() if "--relax" not in line)
    answer = client.post("/api/v1/slurm/sbatch", {"script": script})
    job = Job.objects.get(number=answer.json()["job"]["number"])

    assert (job.pack, job.pack_required, job.relax) == ("rack", True, [{"constraint": "pack", "after": 600}])
    shown = client.get(f"/api/v1/jobs/{job.number}").json()["relax"]
    assert [(one["constraint"], one["after"], one["relaxed"]) for one in shown] == [("pack", 600, False)]
    assert shown[0]["at"] is not None
    changed = client.patch(f"/api/v1/jobs/{job.number}", {"relax": [{"constraint": "pack", "after": "1h"}]})
    assert changed.json()["relax"][0]["after"] == 3600
    assert api(portal.cast.colleague).patch(f"/api/v1/jobs/{job.number}", {"relax": []}).status_code == 403
    assert api(portal.cast.stranger).patch(f"/api/v1/jobs/{job.number}", {"relax": []}).status_code == 404
