"""What the command line of the agent says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scheduler.agent.isolation.probe import Site
from scheduler.agent.node.health_check import INTERVAL_SECONDS
from scheduler.agent.node.inventory import Overrides
from scheduler.agent.tasks.orders import PROCESS_LIMIT
from scheduler.agent.tasks.usage import SAMPLE_SECONDS


@dataclass(frozen=True, slots=True)
class Settings:
    server: str
    name: str
    state: Path
    join_token: str
    overrides: Overrides
    #: What the site says of its jobs' isolation.
    site: Site = Site()
    #: A job may use no more memory than it asks for, also where it sets no limit.
    requests_are_limits: bool = False
    insecure_ok: bool = False
    ca_file: str | None = None
    #: How many processes a task may have at a time.
    process_limit: int = PROCESS_LIMIT
    #: How often the use of running tasks is sampled; 0 = never.
    usage_seconds: float = SAMPLE_SECONDS
    #: A program that says whether this machine is fit for jobs, and how often it is run.
    health_check: Path | None = None
    health_check_seconds: float = INTERVAL_SECONDS
    #: End our tasks when this process has ended; 0 lets them live.
    parent_pid: int = 0
    #: End our tasks when we are asked to stop.
    ends_jobs: bool = False
    #: Read the server's address from this file instead; see AddressFile.
    server_file: Path | None = None
    #: Kill an agent that runs with our state folder.
    take_over: bool = False
