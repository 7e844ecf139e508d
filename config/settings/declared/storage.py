"""What jobs leave behind: results, checkpoints, artefacts, and where they are stored."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import Setting

SETTINGS: Final = (
    Setting(
        "MUSTER_KEEP_RESULTS_DAYS",
        "int",
        7,
        "Time for which a node keeps what jobs leave in their working folders; 0: unlimited.",
        "days",
    ),
    Setting(
        "MUSTER_RESULTS_UNTIL_FETCHED",
        "bool",
        False,
        "Let results go MUSTER_RESULTS_NOTICE_HOURS after all of them were downloaded.",
    ),
    Setting(
        "MUSTER_RESULTS_JOB_MIB",
        "int",
        10 * 1024,
        "Results of one task that are kept as long as others; larger ones go after the notice. 0: unlimited.",
        "MiB",
    ),
    Setting(
        "MUSTER_CHECKPOINT_MIB",
        "int",
        100 * 1024,
        "Largest checkpoint of one task; larger ones are refused, with an event. 0: unlimited.",
        "MiB",
    ),
    Setting(
        "MUSTER_RESULTS_PERSON_MIB",
        "int",
        50 * 1024,
        "Results of one person on one node; the oldest beyond go after the notice. 0: unlimited.",
        "MiB",
    ),
    Setting(
        "MUSTER_RESULTS_NODE_MIB",
        "int",
        500 * 1024,
        "Results of all on one node; the oldest beyond go after the notice. 0: unlimited.",
        "MiB",
    ),
    Setting(
        "MUSTER_RESULTS_NOTICE_HOURS",
        "int",
        24,
        "Time between the notice that results go and their removal.",
        "hours",
    ),
    Setting(
        "MUSTER_KEEP_ARTIFACTS_DAYS",
        "int",
        30,
        "Time for which the artefacts of jobs are stored; 0: as long as their jobs.",
        "days",
    ),
    Setting(
        "MUSTER_ARTIFACTS_JOB_MIB",
        "int",
        10 * 1024,
        "Artefacts of one job; what is beyond is not stored, and an event says so. 0: unlimited.",
        "MiB",
    ),
    Setting(
        "MUSTER_STORAGE",
        "str",
        "",
        "Where artefacts are stored: `file:///folder`, or "
        "`s3://bucket/prefix?endpoint=https://host&region=name` with credentials in AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY. Empty: `storage` in the state folder; nowhere in production settings without "
        "MUSTER_STATE.",
    ),
    Setting(
        "MUSTER_STORAGE_KEYS",
        "list",
        [],
        "Keys that encrypt what is stored, 64 hexadecimal digits each: the first encrypts, all decrypt. "
        "Empty: stored as it is; secrets are encrypted with the secret key then.",
        secret=True,
    ),
    Setting(
        "CHECKPOINT_PATH",
        "str",
        "",
        "Folder for checkpoints, where they are not to go to MUSTER_STORAGE.",
    ),
)
