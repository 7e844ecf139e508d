"""`make conformance`: the OpenAPI document against a running portal, with a client and requests made of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stack import ROOT, Stack

pytestmark = pytest.mark.skipif(
    "MUSTER_CONFORMANCE" not in os.environ, reason="takes a minute: `make conformance` tries it"
)

DOCUMENT = ROOT / "docs" / "reference" / "openapi.yaml"
BIN = Path(sys.executable).parent
#: What docs/guides/first-job.md does with curl.
TUTORIAL = """
import sys, time
from muster_client import AuthenticatedClient
from muster_client.api.jobs import jobs_get, jobs_logs, jobs_submit
from muster_client.models import JobRequestRequest

address, token = sys.argv[1:]
client = AuthenticatedClient(base_url=address, token=token, raise_on_unexpected_status=True)
asked = JobRequestRequest(name="hello", command="echo hello; sleep 2; echo bye", cpu_cores=1)
job = jobs_submit.sync(client=client, body=asked)
for _ in range(600):
    job = jobs_get.sync(str(job.number), client=client)
    if job.state.value in ("completed", "failed", "cancelled"):
        break
    time.sleep(0.1)
log = jobs_logs.sync(str(job.number), client=client)
print(job.state.value, job.exit_code, repr(log.text))
"""


def test_a_generated_client_runs_the_first_job_tutorial(live_stack: Stack, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    made = subprocess.run(
        [BIN / "openapi-python-client", "generate", "--path", DOCUMENT, "--meta", "none",
         "--output-path", tmp_path / "muster_client"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr

    ran = subprocess.run(
        [sys.executable, "-c", TUTORIAL, live_stack.base_url, live_stack.token],
        env={**environment, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ran.stdout.strip() == r"completed 0 'hello\nbye\n'", ran.stderr


def test_schemathesis_finds_no_answer_that_the_document_does_not_list(
    live_stack: Stack, tmp_path: Path
) -> None:
    """Of a minute, as an ordinary person, whose requests can harm nothing but their own jobs."""
    token = live_stack.manage("token", "bob", "--scopes", "jobs:write,jobs:read").splitlines()[-1]
    tried = subprocess.run(
        [BIN / "schemathesis", "run", DOCUMENT, "--url", live_stack.base_url,
         "--header", f"Authorization: Bearer {token}",
         "--exclude-path-regex", "^/api/v1/agent/",
         "--phases", "examples,fuzzing", "--max-time", "60", "--seed", "1", "--workers", "2",
         "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,"
         "response_headers_conformance,response_schema_conformance",
         "--suppress-health-check", "all", "--no-color"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert tried.returncode == 0, tried.stdout[-20_000:]
