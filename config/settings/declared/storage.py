"""What jobs leave behind: results, checkpoints, artefacts, and where they are stored."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import Setting

SETTINGS: Final = (
    Setting(
        "MUSTER_KEEP_RESULTS_DAYS",
        "int",
        7,
        "Time for which a node keeps the working folders of ended jobs; 0: unlimited.",
        "days",
    ),
    Setting(
        "MUSTER_RESULTS_UNTIL_FETCHED",
        "bool",
        False,
        "Remove results MUSTER_RESULTS_NOTICE_HOURS after all of them were downloaded.",
    ),
    Setting(
        "MUSTER_RESULTS_JOB_MIB",
        "int",
        10 * 1024,
        "Limit for the results of one task; larger results are removed after the notice. 0: unlimited.",
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
        "MUSTER_UPLOAD_MIB",
        "int",
        2 * 1024,
        "Largest folder that is uploaded for a job. 0: unlimited.",
        "MiB",
    ),
    Setting("MUSTER_UPLOAD_FILES", "int", 10_000, "Files of one uploaded folder.", "files"),
    Setting(
        "MUSTER_UPLOADS_PERSON_MIB",
        "int",
        20 * 1024,
        "Uploaded folders of one person together. 0: unlimited.",
        "MiB",
    ),
    Setting(
        "MUSTER_KEEP_UPLOADS_DAYS",
        "int",
        7,
        "Time for which an uploaded folder is kept after a job last named it; those of jobs that have not "
        "ended, or whose results are kept, stay. 0: unlimited.",
        "days",
    ),
    Setting(
        "MUSTER_RESULTS_PERSON_MIB",
        "int",
        50 * 1024,
        "Limit for results of a person on a node; the oldest above it go after the notice. 0: unlimited.",
        "MiB",
    ),
    Setting(
        "MUSTER_RESULTS_NODE_MIB",
        "int",
        500 * 1024,
        "Limit for all results on a node; the oldest above it go after the notice. 0: unlimited.",
        "MiB",
    ),
    Setting(
        "MUSTER_RESULTS_NOTICE_HOURS",
        "int",
        24,
        "Time between the notice and the removal of results.",
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
        "Limit for the artefacts of a job; further files are not stored, and an event says so. 0: unlimited.",
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
        "CHECKPOINT_PATH", "str", "", "Folder for checkpoints, instead of MUSTER_STORAGE.", form="folder"
    ),
)
