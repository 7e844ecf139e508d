"""A quota provider that asks a service of the site over HTTP: an example, whole, to be copied and changed.

The service answers three requests with JSON bodies. Any system that can do so decides which jobs of Muster start:

    POST /check     {"project": 7, "user": 3, "job_type": "batch", "tasks": 2, "per_task": {"cpu_millis": 4000, ...}}
                    -> {"allowed": true}
                    -> {"allowed": false, "possible": true, "text": "The lab has 2 of 16 cores left."}
    POST /allocate  the same with "key" -> 200, or 409 {"text": "..."}: used up in between
    POST /release   {"key": "481"} -> 200, also for a key that it does not know

    QUOTA_PROVIDERS=site=http_quota:HttpQuotaProvider
    SITE_QUOTA_URL=http://quota.example.org
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from quotas.core.resources import Resources
from quotas.providers.base import QuotaCheck, Refused, Unreachable


class HttpQuotaProvider:
    """Muster calls it in a thread with a time limit of its own; the timeout here only ends the thread sooner."""

    timeout_seconds = 2.0

    def __init__(self) -> None:
        self.url = os.environ["SITE_QUOTA_URL"].rstrip("/")

    def check_quota(
        self,
        project_id: int,
        resources: Resources,
        job_type: str = "batch",
        *,
        tasks: int = 1,
        user_id: int | None = None,
        devices: Mapping[str, int] | None = None,
    ) -> QuotaCheck:
        """Before a start, and for each submission and preview."""
        body = _start(project_id, resources, job_type, tasks, user_id, devices)
        answer = self._post("check", body)
        return QuotaCheck(
            allowed=answer["allowed"],
            possible=answer.get("possible", True),
            provider_text=answer.get("text", ""),
        )

    def allocate_quota(
        self,
        project_id: int,
        resources: Resources,
        job_type: str = "batch",
        *,
        tasks: int = 1,
        user_id: int | None = None,
        devices: Mapping[str, int] | None = None,
        key: str = "",
    ) -> None:
        """After a start; the service counts each key once."""
        self._post(
            "allocate", _start(project_id, resources, job_type, tasks, user_id, devices) | {"key": key}
        )

    def release_quota(
        self,
        project_id: int,
        resources: Resources,
        job_type: str = "batch",
        *,
        tasks: int = 1,
        user_id: int | None = None,
        devices: Mapping[str, int] | None = None,
        key: str = "",
    ) -> None:
        """After the end."""
        self._post("release", {"key": key})

    def _post(self, verb: str, body: Mapping[str, Any]) -> Any:
        request = Request(
            f"{self.url}/{verb}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urlopen(request, timeout=self.timeout_seconds) as answer:
                return json.load(answer)
        except HTTPError as error:
            if error.code == 409:
                raise Refused(json.load(error)["text"]) from error
            pause = error.headers.get("Retry-After", "")
            raise Unreachable(
                f"{self.url} answered {error.code}.",
                retry_after_seconds=int(pause) if pause.isdecimal() else 0,
            ) from error
        except OSError as error:
            raise Unreachable(f"{self.url} does not answer: {error}") from error


def _start(
    project_id: int,
    resources: Resources,
    job_type: str,
    tasks: int,
    user_id: int | None,
    devices: Mapping[str, int] | None,
) -> dict[str, Any]:
    return {
        "project": project_id,
        "user": user_id,
        "job_type": job_type,
        "tasks": tasks,
        "per_task": {
            "cpu_millis": resources.cpu_millis,
            "memory_mib": resources.memory_mib,
            "gpu_millis": resources.gpu_millis_charged,
            "storage_mib": resources.storage_mib,
        },
        "devices": dict(devices or {}),
    }
