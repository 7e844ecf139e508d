"""Slurm that answers what nobody expects: said to people as a refusal, and never a fault that hides itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quotas.providers.base import Refused
from quotas.providers.slurm.commands import CommandTransport
from quotas.providers.slurm.rest import RestTransport

NEWER = {
    "QOS": [{"name": "project-7", "limits": {"max": {"active_jobs": {"count": {"set": True, "number": 5}}}}}]
}


@pytest.mark.parametrize(
    "answer",
    [
        NEWER,
        {"QOS": 5},
        {"QOS": ["project-7"]},
        {"QOS": [{"name": "project-7", "limits": {"max": {"tres": {"total": [{"name": "gpu"}]}}}}]},
        {"associations": [[]]},
        {"jobs": [{"qos": "project-7", "job_state": "RUNNING", "tres_alloc_str": 5}]},
    ],
)
def test_an_answer_of_another_version_is_a_refusal_that_names_it(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]
) -> None:
    transport = RestTransport("http://slurm", "a token", user="slurm", version="v0.0.41", cluster="one")
    monkeypatch.setattr(transport, "call", lambda *_, **__: answer)

    with pytest.raises(Refused, match=r"v0\.0\.41"):
        transport.read("project-7")


@pytest.mark.parametrize("jobs", ["many", "1.5.2", "-2"])
def test_a_number_that_is_none_is_a_refusal(monkeypatch: pytest.MonkeyPatch, jobs: str) -> None:
    transport = CommandTransport("ssh login1")
    said = {"sacctmgr": f"project-7|cpu=8|{jobs}\n"}
    monkeypatch.setattr(transport, "run", lambda *command, **_: said.get(command[0], ""))

    with pytest.raises(Refused, match="cannot read"):
        transport.read("project-7")


def test_what_fair_share_says_there_is_never_a_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = CommandTransport("ssh login1")

    def said(*command: str, **_: object) -> str:
        if command[0] == "sshare":
            return "project-7|mia|parent|1.5e3|0.2|inf\nproject-7||0.5|nan||0.9\n"
        return "project-7||project-7\n" if "assoc" in command else ""

    monkeypatch.setattr(transport, "run", said)

    facts = transport.read("project-7").facts["fair_share"]

    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert (facts["users"]["mia"]["raw_usage_seconds"], facts["users"]["mia"]["fair_share"]) == (1500, None)
    assert (facts["raw_usage_seconds"], facts["fair_share"]) == (0, 0.9)
