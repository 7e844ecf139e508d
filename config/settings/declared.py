"""Every environment variable that Muster reads: name, type, default, unit and meaning.

The settings files read through `read`; `manage.py settings_reference` writes docs/reference/settings.md from the table.
A default of None means that the program computes the value; the meaning says how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import environ

_env = environ.Env()
_HOUR, _DAY, _MIB = 3600, 24 * 3600, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable. `kind` is str, int, float, bool, list (comma-separated) or dict (`a=1,b=2`, numbers)."""

    name: str
    kind: str
    default: Any
    meaning: str
    unit: str = ""
    #: False where a process reads the variable itself, before or without Django's settings.
    in_settings: bool = True
    #: A secret's default and value are never shown.
    secret: bool = False


def read(name: str, default: Any = None) -> Any:
    """The value of a declared variable in the environment, or its default; `default` replaces a computed one."""
    setting = SETTINGS[name]
    fallback = setting.default if setting.default is not None else default
    if setting.kind == "dict":
        return _env.dict(name, cast={"value": float}, default=fallback)
    return getattr(_env, setting.kind)(name, default=fallback)


GROUPS: Final[tuple[tuple[str, tuple[Setting, ...]], ...]] = (
    (
        "Portal and processes",
        (
            Setting(
                "MUSTER_SECRET_KEY",
                "str",
                None,
                "Django's secret key: at least 50 random characters. Required in "
                "production; `make run` creates one in the state folder.",
                secret=True,
            ),
            Setting(
                "MUSTER_OLD_SECRET_KEYS",
                "list",
                [],
                "Earlier secret keys: sessions that they signed go on, and secrets that they encrypted are read until "
                "`manage.py rotate_secrets` has encrypted these anew.",
                secret=True,
            ),
            Setting(
                "MUSTER_ALLOWED_HOSTS",
                "list",
                None,
                "Host names of the portal. Required in production; `make run` accepts names of this machine.",
            ),
            Setting(
                "MUSTER_TRUSTED_ORIGINS",
                "list",
                [],
                "Other origins (`https://host`) whose pages may send forms and open the live socket.",
            ),
            Setting(
                "MUSTER_TRUSTED_PROXIES",
                "list",
                [],
                "Addresses and networks of reverse proxies whose "
                "`X-Forwarded-For` and `X-Forwarded-Proto` are accepted.",
            ),
            Setting(
                "MUSTER_STATE",
                "str",
                "",
                "State folder of `manage.py up`: databases, logs, secrets. "
                "Empty: `var` in the source folder.",
            ),
            Setting(
                "MUSTER_STATIC_ROOT",
                "str",
                None,
                "Folder of `collectstatic`, in production. Default: `static-root` in the source folder.",
            ),
            Setting(
                "MUSTER_PROCESS",
                "str",
                "muster",
                "Name of the process, as PostgreSQL shows it; the database limits "
                "depend on it (`muster-web`, `muster-worker`, `muster-beat`).",
            ),
            Setting(
                "MUSTER_READY_FILE",
                "str",
                "",
                "File that a process writes when it is ready; set by the supervisor.",
                in_settings=False,
            ),
            Setting("PORT", "int", 8080, "Port of `make run`.", in_settings=False),
            Setting(
                "MUSTER_WEB_PROCESSES",
                "int",
                None,
                "Web processes of `manage.py up`. Default: 2, or 1 on one processor.",
                "processes",
                in_settings=False,
            ),
            Setting(
                "MUSTER_WEB_MEMORY_MIB",
                "int",
                None,
                "A web process above this memory is replaced. Default: 2048; 0: no ceiling.",
                "MiB",
                in_settings=False,
            ),
            Setting(
                "PROMETHEUS_MULTIPROC_DIR",
                "str",
                "",
                "Folder in which web processes share their metrics; set by the supervisor.",
                in_settings=False,
            ),
            Setting("MUSTER_DEBUG", "bool", False, "Django's debug pages. Development settings only."),
            Setting(
                "MUSTER_DEMO",
                "bool",
                False,
                "Show the demo accounts on the sign-in page. Development settings only.",
            ),
            Setting(
                "MUSTER_LOG_LEVEL", "str", "INFO", "Lowest level of log lines: DEBUG, INFO, WARNING, ERROR."
            ),
            Setting("MUSTER_LOG_JSON", "bool", True, "Log lines as JSON; false: as text."),
            Setting("MUSTER_QUIET_REQUESTS", "bool", False, "Leave successful requests out of the log."),
            Setting(
                "MUSTER_METRICS_TOKEN",
                "str",
                "",
                "Bearer token for `/metrics` and `/readyz?verbose`. Empty: signed-in "
                "operators only. `make run` creates one in the state folder.",
                secret=True,
            ),
            Setting(
                "MUSTER_DISK_FOLDERS",
                "list",
                None,
                "Folders whose free disk space is watched. Default: the state folder.",
            ),
            Setting(
                "MUSTER_DISK_LOW_MIB", "int", 1024, "Free space below which operators are warned.", "MiB"
            ),
            Setting("MUSTER_DISK_FULL_MIB", "int", 64, "Free space below which every page warns.", "MiB"),
            Setting("MUSTER_CELERY_REMOTE_CONTROL", "bool", False, "Celery's remote control of workers."),
            Setting("MUSTER_SSL_REDIRECT", "bool", True, "Redirect HTTP to HTTPS. Production settings only."),
            Setting(
                "MUSTER_HSTS_SECONDS",
                "int",
                365 * _DAY,
                "HSTS duration; 0 is off. Production settings only.",
                "s",
            ),
            Setting("MUSTER_HSTS_SUBDOMAINS", "bool", True, "HSTS for subdomains. Production settings only."),
            Setting("MUSTER_HSTS_PRELOAD", "bool", True, "HSTS preload. Production settings only."),
        ),
    ),
    (
        "Database and broker",
        (
            Setting(
                "DATABASE_URL",
                "str",
                "postgres://scheduler@127.0.0.1:5433/scheduler_dev",
                "PostgreSQL. "
                "Required in production; `manage.py` commands start a server of their own without it.",
                secret=True,
            ),
            Setting(
                "MUSTER_OWNER_DATABASE_URL",
                "str",
                "",
                "The same database as the role that owns the tables, for `manage.py migrate` only.",
                secret=True,
            ),
            Setting(
                "REDIS_URL",
                "str",
                "redis://127.0.0.1:6379/0",
                "Redis or Valkey: broker, cache and notifications. Required in production.",
                secret=True,
            ),
            Setting(
                "MUSTER_DB_STATEMENT_SECONDS",
                "float",
                None,
                "Longest statement; 0: no limit. Default: 30 for web and "
                "beat, 60 for the planner, 300 for workers, none for commands.",
                "s",
            ),
            Setting(
                "MUSTER_DB_LOCK_SECONDS",
                "float",
                None,
                "Longest wait for a lock; 0: no limit. Default: 10 for web and "
                "beat, 20 for the planner, 60 for workers, none for commands.",
                "s",
            ),
            Setting(
                "MUSTER_DB_IDLE_SECONDS",
                "float",
                None,
                "Longest idle time inside a transaction; 0: no limit. Default: "
                "60 for web and beat, 120 for the planner, 300 for workers, none for commands.",
                "s",
            ),
            Setting(
                "MUSTER_DB_SILENCE_SECONDS",
                "float",
                None,
                "Time without an answer after which a server that accepts no "
                "new connection counts as down. Default: 1 for web, 2 for planner and beat, 5 for workers, 30 for "
                "commands.",
                "s",
            ),
            Setting("MUSTER_DB_CONNECT_SECONDS", "int", 3, "Timeout of a new connection.", "s"),
            Setting(
                "MUSTER_DB_PREPARED",
                "bool",
                True,
                "Prepare frequent statements per connection. False behind a pooler "
                "that assigns connections per transaction.",
            ),
        ),
    ),
    (
        "Requests",
        (
            Setting(
                "MUSTER_API_RATE",
                "float",
                500.0,
                "Average rate of API requests per token or person; 0: no limit.",
                "requests/s",
            ),
            Setting("MUSTER_API_BURST", "int", 3000, "API requests at once per token or person.", "requests"),
            Setting("MUSTER_MAX_BODY_BYTES", "int", 8 * _MIB, "Largest request body.", "bytes"),
            Setting(
                "MUSTER_MAX_HELD_BYTES",
                "int",
                256 * _MIB,
                "All request bodies that one web process holds.",
                "bytes",
            ),
            Setting("MUSTER_MAX_BULK", "int", 1000, "Jobs in one `jobs:bulk` request.", "jobs"),
            Setting("MUSTER_MAX_ARRAY_SIZE", "int", 10_000, "Elements of one array.", "jobs"),
            Setting(
                "MUSTER_MAX_ROWS",
                "int",
                20_000,
                "Rows that one request may create: jobs of arrays and their dependencies.",
                "rows",
            ),
            Setting(
                "MUSTER_MAX_TEXT_MIB",
                "int",
                256,
                "Commands, scripts and environments of those rows together.",
                "MiB",
            ),
            Setting("MUSTER_MAX_EXPORT_ROWS", "int", 1_000_000, "Rows of one exported file.", "rows"),
            Setting(
                "MUSTER_SHAPES_SECONDS",
                "float",
                5.0,
                "Age of the cached node sizes that a submission is checked against.",
                "s",
            ),
        ),
    ),
    (
        "Sign-in",
        (
            Setting(
                "MUSTER_SIGN_IN_TRIES",
                "int",
                5,
                "Failed attempts without delay, per username and address.",
                "attempts",
            ),
            Setting(
                "MUSTER_SIGN_IN_TRIES_OF_ADDRESS",
                "int",
                20,
                "Failed attempts without delay, per address.",
                "attempts",
            ),
            Setting(
                "MUSTER_SIGN_IN_TRIES_OF_NAME",
                "int",
                15,
                "Failed attempts without delay, per username.",
                "attempts",
            ),
            Setting(
                "MUSTER_SIGN_IN_DELAY_SECONDS",
                "float",
                1.0,
                "First delay; each failed attempt doubles it.",
                "s",
            ),
            Setting("MUSTER_SIGN_IN_MOST_DELAY_SECONDS", "float", 900.0, "Longest delay per address.", "s"),
            Setting(
                "MUSTER_SIGN_IN_MOST_DELAY_OF_NAME_SECONDS",
                "float",
                60.0,
                "Longest delay per username from other addresses.",
                "s",
            ),
            Setting(
                "MUSTER_SIGN_IN_FORGET_SECONDS",
                "int",
                _HOUR,
                "Time without an attempt after which failed attempts are forgotten.",
                "s",
            ),
        ),
    ),
    (
        "Audit trail",
        (
            Setting(
                "MUSTER_AUDIT_KEY",
                "str",
                "",
                "Key that signs the audit trail. Empty: the secret key; `make run` "
                "creates one in the state folder.",
                secret=True,
            ),
            Setting(
                "MUSTER_AUDIT_OLD_KEYS", "list", [], "Earlier keys, which verify older rows.", secret=True
            ),
            Setting(
                "MUSTER_AUDIT_CHECKPOINT_FILE",
                "str",
                "",
                "File outside the database for signed checkpoints; `make run` uses one in the state folder.",
            ),
            Setting(
                "MUSTER_AUDIT_SYSLOG",
                "str",
                "",
                "System log for checkpoints: `/dev/log` or `host:port` (UDP).",
            ),
            Setting(
                "MUSTER_AUDIT_S3_BUCKET",
                "str",
                "",
                "Not supported; a value is refused by the deployment check.",
            ),
        ),
    ),
    (
        "Scheduling",
        (
            Setting(
                "SCHEDULING_POLICY", "str", "fifo", "Order of the default profile: fifo, priority, fairshare."
            ),
            Setting(
                "PRIORITY_BOOST_CAP",
                "int",
                100,
                "Highest effective priority that a boost or ageing can reach.",
            ),
            Setting("MUSTER_PLAN_SECONDS", "float", 3.0, "Interval of planning without a change.", "s"),
            Setting(
                "MUSTER_PLANNER_CHECK_SECONDS",
                "float",
                600.0,
                "Interval at which a planner checks the pending jobs that it has in memory against the database.",
                "s",
            ),
            Setting(
                "MUSTER_RECONCILE_SECONDS",
                "float",
                5.0,
                "Interval of the reconciliation with the nodes.",
                "s",
            ),
            Setting("MUSTER_FORECAST_SECONDS", "float", 20.0, "Interval of start forecasts.", "s"),
            Setting("MUSTER_LEASE_SECONDS", "int", 15, "Lease of a planner on a cluster.", "s"),
            Setting("MUSTER_GRACE_SECONDS", "int", 60, "Time from SIGTERM to SIGKILL.", "s"),
            Setting("INVENTORY_SERVICE_URL", "str", "", "Reserved; not used yet."),
        ),
    ),
    (
        "Nodes and logs",
        (
            Setting(
                "MUSTER_JOIN_TOKEN", "str", "", "Token with which an agent registers its node.", secret=True
            ),
            Setting(
                "MUSTER_SYNC_HOLD_SECONDS",
                "float",
                20.0,
                "Longest time that the server holds an idle sync call of an agent.",
                "s",
            ),
            Setting(
                "MUSTER_NODE_SILENT_SECONDS",
                "int",
                30,
                "Time without a heartbeat after which a node is `unknown`.",
                "s",
            ),
            Setting(
                "MUSTER_NODE_LOST_SECONDS",
                "int",
                900,
                "Time without a heartbeat after which a node is `down` and its jobs are lost.",
                "s",
            ),
            Setting(
                "MUSTER_QUARANTINE_PEOPLE",
                "int",
                3,
                "A node drains when jobs of this number of people failed on it, by its fault or unhealthy; 0 = never.",
            ),
            Setting(
                "MUSTER_QUARANTINE_FAILURES",
                "int",
                5,
                "The least number of such failures.",
            ),
            Setting("MUSTER_QUARANTINE_SECONDS", "int", 600, "The time in which they count.", "s"),
            Setting("MUSTER_LOG_CAP_BYTES", "int", 64 * _MIB, "Stored output per stream of a task.", "bytes"),
            Setting(
                "MUSTER_SCRATCH_MIB",
                "int",
                0,
                "Disk that a task may fill on its node, where its job asks for no storage and its queue has no "
                "`scratch_mib`; 0: unlimited.",
                "MiB",
            ),
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
        ),
    ),
    (
        "Fair share, quota and ledger",
        (
            Setting(
                "MUSTER_FAIRSHARE_MODE",
                "str",
                "exponential",
                "Decay of past usage: exponential, window, none.",
            ),
            Setting("MUSTER_FAIRSHARE_HALF_LIFE_SECONDS", "int", _DAY, "Half-life of past usage.", "s"),
            Setting("MUSTER_FAIRSHARE_WINDOW_SECONDS", "int", 7 * _DAY, "Window of past usage.", "s"),
            Setting(
                "MUSTER_FAIRSHARE_WEIGHTS",
                "dict",
                {"gpu": 1.0, "cpu": 0.0, "memory": 0.0},
                "Weight of each resource.",
            ),
            Setting(
                "MUSTER_FAIRSHARE_DOMINANT", "bool", False, "Count the dominant resource instead of the sum."
            ),
            Setting("MUSTER_FAIRSHARE_METRICS", "bool", False, "One metric series per project."),
            Setting(
                "QUOTA_HEADROOM_PERCENT",
                "int",
                15,
                "Part of the cluster that the sum of limits should leave free.",
                "%",
            ),
            Setting(
                "QUOTA_SECOND_APPROVER_PERCENT",
                "int",
                100,
                "A quota request above this raise needs a second approval; 0: never.",
                "%",
            ),
            Setting(
                "LEDGER_OPEN_HOLD_SECONDS",
                "int",
                _HOUR,
                "Time reserved at a time for a job without a time limit.",
                "s",
            ),
            Setting("LEDGER_FORGIVES", "list", ["lost"], "Ends whose usage is refunded: lost, preempted."),
            Setting("LEDGER_CURRENCY", "str", "EUR", "Currency of prices and money budgets."),
            Setting(
                "MUSTER_ALERT_DIGEST_SECONDS",
                "int",
                6 * _HOUR,
                "Shortest time between two notices to one person.",
                "s",
            ),
            Setting(
                "MUSTER_ALERT_MAIL_FROM",
                "str",
                "",
                "Sender of mails. Empty: no mail, notifications in the portal.",
            ),
            Setting(
                "MUSTER_PUBLIC_URL", "str", "", "Address of the portal for links in mails. Empty: no links."
            ),
            Setting(
                "MUSTER_NOTIFY_SECONDS", "float", 5.0, "Interval of reading events for notifications.", "s"
            ),
            Setting(
                "MUSTER_NOTIFICATION_BURST_SECONDS",
                "int",
                120,
                "Jobs of one project and kind within this time of each other make one notification.",
                "s",
            ),
            Setting("MUSTER_MAIL_WAIT_SECONDS", "int", 30, "Wait of a mail for the rest of its burst.", "s"),
            Setting(
                "MUSTER_MAIL_AGAIN_SECONDS",
                "int",
                _HOUR,
                "Shortest time between two mails of one notification.",
                "s",
            ),
            Setting(
                "MUSTER_WEBHOOK_WAIT_SECONDS", "int", 2, "Wait of a webhook for the rest of its burst.", "s"
            ),
            Setting(
                "MUSTER_WEBHOOK_KEY",
                "str",
                "",
                "Secrets of webhooks are derived from it. Empty: from the secret key.",
                secret=True,
            ),
            Setting(
                "MUSTER_WEBHOOK_OLD_KEYS",
                "list",
                [],
                "Keys that were replaced; webhooks sign with them until their secret is rotated.",
                secret=True,
            ),
            Setting(
                "MUSTER_WEBHOOK_NETWORKS",
                "list",
                [],
                "Networks that are not public and that webhooks may reach all the same, by http too.",
            ),
            Setting("MUSTER_WEBHOOK_PORTS", "list", ["443", "80", "8443"], "Ports that webhooks may reach."),
            Setting("EMAIL_HOST", "str", "localhost", "Mail server."),
            Setting("EMAIL_PORT", "int", 25, "Port of the mail server."),
            Setting("EMAIL_HOST_USER", "str", "", "User at the mail server."),
            Setting("EMAIL_HOST_PASSWORD", "str", "", "Password at the mail server.", secret=True),
            Setting("EMAIL_USE_TLS", "bool", False, "STARTTLS to the mail server."),
        ),
    ),
    (
        "Quota providers",
        (
            Setting("QUOTA_PROVIDER", "str", "local", "Provider of new quotas: local, k8s, slurm."),
            Setting("QUOTA_PROVIDER_TIMEOUT_SECONDS", "float", 10.0, "Timeout of one call.", "s"),
            Setting(
                "QUOTA_PROVIDER_FAILURES",
                "int",
                3,
                "Failures in a row after which the provider is paused.",
                "calls",
            ),
            Setting("QUOTA_PROVIDER_PAUSE_SECONDS", "int", 30, "Length of the pause.", "s"),
            Setting(
                "QUOTA_PROVIDER_SYNC_SECONDS",
                "int",
                300,
                "Interval of comparing a project without changes.",
                "s",
            ),
            Setting(
                "QUOTA_PROVIDER_WHEN_AWAY",
                "str",
                "wait",
                "Jobs while the provider is unreachable: wait, run.",
            ),
            Setting("QUOTA_PROVIDER_GRACE_SECONDS", "int", 60, "Time before jobs wait.", "s"),
            Setting("SLURM_ACCOUNT_PREFIX", "str", "project-", "Prefix of Slurm accounts of projects."),
            Setting(
                "EXECUTOR_SLURM_REST_API_URL", "str", "http://slurm-controller:6820", "Address of slurmrestd."
            ),
            Setting(
                "EXECUTOR_SLURM_AUTH_TOKEN",
                "str",
                "",
                "Token for slurmrestd. Empty: Slurm's commands are used.",
                secret=True,
            ),
            Setting("EXECUTOR_SLURM_USER", "str", "slurm", "User of the token."),
            Setting("SLURM_REST_VERSION", "str", "v0.0.38", "Version of the slurmrestd API."),
            Setting("SLURM_CLUSTER", "str", "", "Cluster in slurmdbd; required where there are several."),
            Setting(
                "SLURM_COMMAND",
                "str",
                "",
                "Prefix of Slurm commands on another machine, such as `ssh login1`.",
            ),
            Setting(
                "K8S_API_URL",
                "str",
                "",
                "API server of Kubernetes. Empty: KUBECONFIG, then the pod's own account.",
            ),
            Setting("K8S_API_TOKEN", "str", "", "Bearer token for Kubernetes.", secret=True),
            Setting("K8S_CA_FILE", "str", "", "CA certificate of the API server."),
            Setting("K8S_CONTEXT", "str", "", "Context in KUBECONFIG."),
            Setting(
                "KUBECONFIG",
                "str",
                "~/.kube/config",
                "Configuration file of Kubernetes clients.",
                in_settings=False,
            ),
            Setting("K8S_QUOTA_NAMESPACE", "str", "wanllmdb-jobs", "Namespace of ResourceQuotas."),
            Setting("K8S_CREATE_RESOURCE_QUOTAS", "bool", False, "Write ResourceQuotas to Kubernetes."),
        ),
    ),
    (
        "Retention",
        (
            Setting("MUSTER_KEEP_CYCLES_DAYS", "int", 2, "Recorded planning cycles.", "days"),
            Setting("MUSTER_KEEP_LOGS_DAYS", "int", 30, "Output of ended jobs.", "days"),
            Setting("MUSTER_KEEP_JOBS_DAYS", "int", 0, "Ended jobs; 0: unlimited.", "days"),
            Setting("MUSTER_KEEP_EVENTS_DAYS", "int", 0, "Events of ended jobs; 0: unlimited.", "days"),
            Setting("MUSTER_KEEP_FORECASTS_DAYS", "int", 400, "Accuracy of forecasts; 0: unlimited.", "days"),
            Setting(
                "MUSTER_KEEP_SHARES_DAYS",
                "int",
                35,
                "Fair-share usage in slices of six hours; 0: unlimited.",
                "days",
            ),
            Setting(
                "MUSTER_KEEP_LEDGER_DAYS",
                "int",
                0,
                "Single ledger entries, before they are summed by day; 0: unlimited.",
                "days",
            ),
            Setting(
                "MUSTER_KEEP_AUDIT_DAYS",
                "int",
                0,
                "Rows of the audit trail, before a signed checkpoint replaces them; 0: unlimited.",
                "days",
            ),
            Setting(
                "MUSTER_KEEP_ALERTS_DAYS", "int", 400, "Ended alerts and their notices; 0: unlimited.", "days"
            ),
            Setting("MUSTER_KEEP_DRIFT_DAYS", "int", 400, "Corrected counter drift; 0: unlimited.", "days"),
            Setting(
                "MUSTER_KEEP_NOTIFICATIONS_DAYS",
                "int",
                90,
                "Notifications, and messages to webhooks with their log; 0: unlimited.",
                "days",
            ),
        ),
    ),
)

SETTINGS: Final[dict[str, Setting]] = {one.name: one for _, group in GROUPS for one in group}
