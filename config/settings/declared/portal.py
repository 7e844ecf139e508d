"""The portal's addresses, keys, processes, log, metrics and HTTPS."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import DAY, Setting

SETTINGS: Final = (
    Setting(
        "MUSTER_SETTINGS_FILE",
        "str",
        "/etc/muster/muster.yaml",
        "YAML file with `NAME: value` for any of these variables; the environment comes first. The default is read "
        "where it exists; empty: no file.",
        in_settings=False,
    ),
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
        form="url",
    ),
    Setting(
        "MUSTER_TRUSTED_PROXIES",
        "list",
        [],
        "Addresses and networks of reverse proxies whose "
        "`X-Forwarded-For` and `X-Forwarded-Proto` are accepted.",
        form="network",
    ),
    Setting(
        "MUSTER_STATE",
        "str",
        "",
        "State folder of `manage.py up`: databases, logs, secrets. Empty: `var` in the source folder.",
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
        internal=True,
    ),
    Setting(
        "MUSTER_READY_FILE",
        "str",
        "",
        "File that a process writes when it is ready; set by the supervisor.",
        in_settings=False,
        internal=True,
    ),
    Setting("PORT", "int", 8080, "Port of `make run`.", in_settings=False, least=1, most=65_535),
    Setting(
        "MUSTER_WEB_PROCESSES",
        "int",
        None,
        "Web processes of `manage.py up`. Default: 2, or 1 on one processor.",
        "processes",
        in_settings=False,
        least=1,
        most=16,
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
        internal=True,
    ),
    Setting("MUSTER_DEBUG", "bool", False, "Django's debug pages. Development settings only."),
    Setting(
        "MUSTER_DEMO",
        "bool",
        False,
        "Show the demo accounts on the sign-in page. Development settings only.",
    ),
    Setting(
        "MUSTER_LOG_LEVEL",
        "str",
        "INFO",
        "Lowest level of log lines: DEBUG, INFO, WARNING, ERROR.",
        choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
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
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "str",
        "",
        "Base address of an OpenTelemetry collector that takes OTLP over HTTP, such as `http://127.0.0.1:4318`: "
        "it gets traces of requests and jobs. Empty: no traces. Needs `requirements-tracing.txt`.",
        form="url",
    ),
    Setting(
        "OTEL_EXPORTER_OTLP_HEADERS",
        "str",
        "",
        "Headers for the collector: `name=value`, separated by commas.",
        in_settings=False,
        secret=True,
    ),
    Setting(
        "OTEL_TRACES_SAMPLER",
        "str",
        "parentbased_always_on",
        "Which traces are recorded. With a `parentbased` one a caller's `traceparent` decides, where there is one.",
        in_settings=False,
        choices=(
            "always_on",
            "always_off",
            "traceidratio",
            "parentbased_always_on",
            "parentbased_always_off",
            "parentbased_traceidratio",
        ),
    ),
    Setting(
        "OTEL_TRACES_SAMPLER_ARG",
        "float",
        1.0,
        "The part of all traces that the two `traceidratio` samplers record.",
        in_settings=False,
        most=1,
    ),
    Setting(
        "MUSTER_DISK_FOLDERS",
        "list",
        None,
        "Folders whose free disk space is watched. Default: the state folder.",
    ),
    Setting("MUSTER_DISK_LOW_MIB", "int", 1024, "Free space below which operators are warned.", "MiB"),
    Setting("MUSTER_DISK_FULL_MIB", "int", 64, "Free space below which every page warns.", "MiB"),
    Setting("MUSTER_CELERY_REMOTE_CONTROL", "bool", False, "Celery's remote control of workers."),
    Setting("MUSTER_SSL_REDIRECT", "bool", True, "Redirect HTTP to HTTPS. Production settings only."),
    Setting(
        "MUSTER_HSTS_SECONDS",
        "int",
        365 * DAY,
        "HSTS duration; 0 is off. Production settings only.",
        "s",
    ),
    Setting("MUSTER_HSTS_SUBDOMAINS", "bool", True, "HSTS for subdomains. Production settings only."),
    Setting("MUSTER_HSTS_PRELOAD", "bool", True, "HSTS preload. Production settings only."),
)
