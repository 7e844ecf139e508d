"""How many requests, how large, and how much one may create or export."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import MIB, Setting

SETTINGS: Final = (
    Setting(
        "MUSTER_API_RATE",
        "float",
        500.0,
        "Average rate of API requests per token or person; 0: no limit.",
        "requests/s",
    ),
    Setting(
        "MUSTER_API_BURST", "int", 3000, "API requests at once per token or person.", "requests", least=1
    ),
    Setting("MUSTER_MAX_BODY_BYTES", "int", 8 * MIB, "Largest request body.", "bytes", least=1024),
    Setting(
        "MUSTER_MAX_HELD_BYTES",
        "int",
        256 * MIB,
        "All request bodies that one web process holds.",
        "bytes",
        least=1024,
    ),
    Setting("MUSTER_MAX_BULK", "int", 1000, "Jobs in one `jobs:bulk` request.", "jobs", least=1),
    Setting("MUSTER_MAX_ARRAY_SIZE", "int", 10_000, "Elements of one array.", "jobs", least=1),
    Setting(
        "MUSTER_MAX_ROWS",
        "int",
        20_000,
        "Rows that one request may create: jobs of arrays and their dependencies.",
        "rows",
        least=1,
    ),
    Setting(
        "MUSTER_MAX_TEXT_MIB",
        "int",
        256,
        "Commands, scripts and environments of those rows together.",
        "MiB",
        least=1,
    ),
    Setting("MUSTER_MAX_EXPORT_ROWS", "int", 1_000_000, "Rows of one exported file.", "rows", least=1),
    Setting(
        "MUSTER_KILL_INVALID_DEPEND",
        "bool",
        False,
        "Cancel a job once its dependencies can never be satisfied, as Slurm's kill_invalid_depend; false: the job "
        "stays, with the reason DependencyNeverSatisfied.",
    ),
    Setting(
        "MUSTER_SHAPES_SECONDS",
        "float",
        5.0,
        "Age of the cached node sizes that a submission is checked against.",
        "s",
    ),
)
