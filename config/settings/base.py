"""Settings that every Muster process shares; config/settings/declared/ has the environment variables."""

from __future__ import annotations

from pathlib import Path

from celery.schedules import schedule as every
from django.core.exceptions import ImproperlyConfigured

from config.admin_theme import UNFOLD  # noqa: F401  the admin reads it from the settings
from config.logging import logging_config
from config.settings.database import database_of_this_process
from config.settings.declared import problems, read, set_here
from config.settings.rest import *
from infra.storage import storage_setting

ROOT = Path(__file__).resolve().parents[2]

if found := problems():
    raise ImproperlyConfigured("\n".join(found))
#: Names of settings that the environment or the settings file sets.
SETTINGS_GIVEN = set_here()

# ---------------------------------------------------------------- what runs

DEBUG = False
ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
WSGI_APPLICATION = "config.wsgi.application"
AUTH_USER_MODEL = "accounts.User"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
APPEND_SLASH = True

INSTALLED_APPS = [
    "config",
    "unfold",  # before the admin, whose templates it replaces
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "config.apps.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django.contrib.postgres",
    "channels",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_celery_beat",
    "django_htmx",
    "django_structlog",
    "pgtrigger",
    "pghistory",
    "infra",
    "accounts",
    "quotas",
    "scheduler",
    "notifications",
]

MIDDLEWARE = [
    "config.health.LivenessMiddleware",  # first: it must answer whatever else is broken
    "accounts.web.middleware.ForwardedMiddleware",  # before anybody asks whether the request came by TLS
    "config.http.request_ids.RequestIdMiddleware",
    "infra.api.problems.ProblemMiddleware",
    "config.http.answers.AnswersMiddleware",  # outside of what makes answers, and of their log line
    "config.metrics.RequestMetricsMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "config.http.security.ContentPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "accounts.web.middleware.ContextMiddleware",
    "config.http.middleware.RequestLogMiddleware",
    "config.http.middleware.HistoryMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

# Spans of requests, for a collector of OpenTelemetry; without one nothing of it is loaded.
OTEL_EXPORTER_OTLP_ENDPOINT = read("OTEL_EXPORTER_OTLP_ENDPOINT")
if OTEL_EXPORTER_OTLP_ENDPOINT:
    _named = MIDDLEWARE.index("config.http.request_ids.RequestIdMiddleware")
    MIDDLEWARE.insert(_named + 1, "config.http.tracing.TracingMiddleware")

# Of a request to the API with a bearer token: without what serves sessions, forms, pages and files. What each of
# these would have done, docs/decisions/0042 says.
TOKEN_MIDDLEWARE = [
    name
    for name in MIDDLEWARE
    if name
    not in (
        "config.health.LivenessMiddleware",
        "whitenoise.middleware.WhiteNoiseMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "django_htmx.middleware.HtmxMiddleware",
    )
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "config.http.security.csp_nonce",
            ],
        },
    }
]

# ---------------------------------------------------------------- rows

# `manage.py` fills in the embedded server's URL; this default only names the place of a developer's own.
DATABASE_URL = read("DATABASE_URL")
# The role that owns the tables, for `migrate` alone; DATABASE_URL's role then gets what config.database.rights lists.
MUSTER_OWNER_DATABASE_URL = read("MUSTER_OWNER_DATABASE_URL")
# Statements that run with every request are planned once for each connection. A pooler between us and the server
# that hands out its connections by the transaction may not know of that; then this is to be false. Nor would it
# find a cursor again that outlives a transaction.
MUSTER_DB_PREPARED = read("MUSTER_DB_PREPARED")
DATABASES = {"default": database_of_this_process(DATABASE_URL)}

# ---------------------------------------------------------------- hints: broker, cache, live updates

# Redis is a hint and a broker only: without it, nothing is lost and nothing is decided wrongly.
REDIS_URL = read("REDIS_URL")
CACHES = {
    "default": {
        "BACKEND": "config.cache.QuietRedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "muster",
        "OPTIONS": {"socket_connect_timeout": 0.5, "socket_timeout": 0.5},
    }
}
SESSION_ENGINE = "django.contrib.sessions.backends.db"

CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 600,
    "socket_connect_timeout": 1,
    "socket_timeout": 10,
    "socket_keepalive": True,
    "global_keyprefix": "muster-",
}
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TASK_ROUTES = {"scheduler.tasks.plan_*": {"queue": "scheduling"}}
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_PUBLISH_RETRY = False  # a web request must not wait for a broker that is away
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_WORKER_ENABLE_REMOTE_CONTROL = read("MUSTER_CELERY_REMOTE_CONTROL")
CELERY_TIMEZONE = "UTC"
CELERY_ENABLE_UTC = True
CELERY_BEAT_SCHEDULER = "config.workers.beat.OnlyBeatScheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 1

# The timetable. Each task is short and safe to run twice; `expire_seconds` keeps a backlog from piling up
# while no worker runs.
PLAN_SECONDS = read("MUSTER_PLAN_SECONDS")
RECONCILE_SECONDS = read("MUSTER_RECONCILE_SECONDS")
FORECAST_SECONDS = read("MUSTER_FORECAST_SECONDS")
NOTIFY_SECONDS = read("MUSTER_NOTIFY_SECONDS")
INVENTORY_SECONDS = read("INVENTORY_SERVICE_SECONDS")
CELERY_BEAT_SCHEDULE = {
    "plan every scope": {
        "task": "scheduler.tasks.plan_all",
        "schedule": every(PLAN_SECONDS),
        "options": {"queue": "scheduling", "expire_seconds": 3 * PLAN_SECONDS},
    },
    "drive backends without agents": {
        "task": "scheduler.tasks.drive_backends",
        "schedule": every(2),
        "options": {"queue": "default", "expire_seconds": 6},
    },
    "quarantine nodes where jobs of several people fail": {
        "task": "scheduler.tasks.watch_nodes",
        "schedule": every(30),
        "options": {"queue": "default", "expire_seconds": 60},
    },
    "follow the inventory service": {
        "task": "scheduler.tasks.follow_inventory",
        "schedule": every(INVENTORY_SECONDS),
        "options": {"queue": "default", "expire_seconds": 3 * INVENTORY_SECONDS},
    },
    "score nodes": {
        "task": "scheduler.tasks.score_nodes",
        "schedule": every(300),
        "options": {"queue": "default", "expire_seconds": 300},
    },
    "go on with moves and drains": {
        "task": "scheduler.tasks.move_jobs",
        "schedule": every(5),
        "options": {"queue": "default", "expire_seconds": 15},
    },
    "reconcile with what runs": {
        "task": "scheduler.tasks.reconcile",
        "schedule": every(RECONCILE_SECONDS),
        "options": {"queue": "default", "expire_seconds": 3 * RECONCILE_SECONDS},
    },
    "forecast starts": {
        "task": "scheduler.tasks.forecast",
        "schedule": every(FORECAST_SECONDS),
        "options": {"queue": "default", "expire_seconds": 3 * FORECAST_SECONDS},
    },
    "store artefacts": {
        "task": "scheduler.tasks.store_artifacts",
        "schedule": every(5),
        "options": {"queue": "default", "expire_seconds": 15},
    },
    "sweep the storage": {
        "task": "scheduler.tasks.sweep_storage",
        "schedule": every(86_400),
        "options": {"queue": "default", "expire_seconds": 86_400},
    },
    "prune old records": {
        "task": "scheduler.tasks.prune",
        "schedule": every(3600),
        "options": {"queue": "default", "expire_seconds": 3600},
    },
    "recount shares": {
        "task": "quotas.tasks.recount",
        "schedule": every(3600),
        "options": {"queue": "default", "expire_seconds": 3600},
    },
    "recount quotas": {
        "task": "quotas.tasks.sync_all",
        "schedule": every(300),
        "options": {"queue": "default", "expire_seconds": 300},
    },
    "keep the ledger": {
        "task": "scheduler.tasks.keep_ledger",
        "schedule": every(300),
        "options": {"queue": "default", "expire_seconds": 300},
    },
    "check usage": {
        "task": "scheduler.tasks.check_usage",
        "schedule": every(900),
        "options": {"queue": "default", "expire_seconds": 900},
    },
    "check usage of weeks": {
        "task": "scheduler.tasks.check_usage",
        "schedule": every(86_400),
        "kwargs": {"thorough": True},
        "options": {"queue": "default", "expire_seconds": 86_400},
    },
    "keep budgets": {
        "task": "quotas.tasks.keep_budgets",
        "schedule": every(300),
        "options": {"queue": "default", "expire_seconds": 300},
    },
    "exchange quotas with their providers": {
        "task": "quotas.tasks.exchange_due",
        "schedule": every(15),
        "options": {"queue": "default", "expire_seconds": 45},
    },
    "tell quota providers": {
        "task": "scheduler.tasks.tell_quota_providers",
        "schedule": every(5),
        "options": {"queue": "default", "expire_seconds": 15},
    },
    "begin and end grants": {
        "task": "quotas.tasks.keep_grants",
        "schedule": every(60),
        "options": {"queue": "default", "expire_seconds": 180},
    },
    "look for alerts": {
        "task": "quotas.tasks.alert",
        "schedule": every(300),
        "options": {"queue": "default", "expire_seconds": 300},
    },
    "compare drafts of profiles": {
        "task": "scheduler.tasks.compare_shadows",
        "schedule": every(10),
        "options": {"queue": "default", "expire_seconds": 30},
    },
    "count for /metrics": {
        "task": "scheduler.tasks.count_for_metrics",
        "schedule": every(15),
        "options": {"queue": "default", "expire_seconds": 45},
    },
    "notify people": {
        "task": "notifications.tasks.follow",
        "schedule": every(NOTIFY_SECONDS),
        "options": {"queue": "default", "expire_seconds": 3 * NOTIFY_SECONDS},
    },
    "look for what people should know": {
        "task": "notifications.tasks.look",
        "schedule": every(30),
        "options": {"queue": "default", "expire_seconds": 90},
    },
    "write down the ends of the audit chains": {
        "task": "accounts.tasks.checkpoint_audit",
        "schedule": every(300),
        "options": {"queue": "default", "expire_seconds": 300},
    },
    "verify the audit chain": {
        "task": "accounts.tasks.verify_audit",
        "schedule": every(3600),
        "options": {"queue": "default", "expire_seconds": 3600},
    },
}
if OTEL_EXPORTER_OTLP_ENDPOINT:
    CELERY_BEAT_SCHEDULE["send traces"] = {
        "task": "scheduler.tasks.send_traces",
        "schedule": every(5),
        "options": {"queue": "default", "expire_seconds": 15},
    }

# ---------------------------------------------------------------- who signs in

AUTHENTICATION_BACKENDS = ["accounts.backends.PasswordBackend"]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "signin"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "signin"

# Failed sign-ins that cost nothing, for a name at an address, for an address, and for a name wherever it is tried;
# then a delay that doubles up to a most. All is forgotten once so long nothing was tried.
MUSTER_SIGN_IN_TRIES = read("MUSTER_SIGN_IN_TRIES")
MUSTER_SIGN_IN_TRIES_OF_ADDRESS = read("MUSTER_SIGN_IN_TRIES_OF_ADDRESS")
MUSTER_SIGN_IN_TRIES_OF_NAME = read("MUSTER_SIGN_IN_TRIES_OF_NAME")
MUSTER_SIGN_IN_DELAY_SECONDS = read("MUSTER_SIGN_IN_DELAY_SECONDS")
MUSTER_SIGN_IN_MOST_DELAY_SECONDS = read("MUSTER_SIGN_IN_MOST_DELAY_SECONDS")
MUSTER_SIGN_IN_MOST_DELAY_OF_NAME_SECONDS = read("MUSTER_SIGN_IN_MOST_DELAY_OF_NAME_SECONDS")
MUSTER_SIGN_IN_FORGET_SECONDS = read("MUSTER_SIGN_IN_FORGET_SECONDS")
# Networks of reverse proxies whose X-Forwarded-For and X-Forwarded-Proto are believed; nobody else's are.
MUSTER_TRUSTED_PROXIES = read("MUSTER_TRUSTED_PROXIES")
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")  # taken away unless such a proxy sends it
# Secret keys that were replaced.
SECRET_KEY_FALLBACKS = read("MUSTER_OLD_SECRET_KEYS")
# Signs the audit trail; without it the secret key does. Old keys still verify old rows.
MUSTER_AUDIT_KEY = read("MUSTER_AUDIT_KEY")
MUSTER_AUDIT_OLD_KEYS = read("MUSTER_AUDIT_OLD_KEYS")
# Where the ends of its chains are written down, signed, out of reach of the database server: a file, and a system
# log, as /dev/log or host:port (UDP). Nothing is written to S3; the setting is there to be refused.
MUSTER_AUDIT_CHECKPOINT_FILE = read("MUSTER_AUDIT_CHECKPOINT_FILE")
MUSTER_AUDIT_SYSLOG = read("MUSTER_AUDIT_SYSLOG")
# Demo accounts may sign in, and from this machine only. Production says no.
DEMO_LOGINS_ALLOWED = True

SESSION_COOKIE_NAME = "muster_session"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = 14 * 24 * 3600
CSRF_COOKIE_NAME = "muster_csrf"
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_TRUSTED_ORIGINS = read("MUSTER_TRUSTED_ORIGINS")

# ---------------------------------------------------------------- what a browser may do

X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
# A larger body is refused at its declared length, and a chunked one as soon as it passes this.
MUSTER_MAX_BODY_BYTES = read("MUSTER_MAX_BODY_BYTES")
DATA_UPLOAD_MAX_MEMORY_SIZE = MUSTER_MAX_BODY_BYTES
# All bodies together that one web process has read and not yet answered.
MUSTER_MAX_HELD_BYTES = read("MUSTER_MAX_HELD_BYTES")
DATA_UPLOAD_MAX_NUMBER_FIELDS = 2000

# ---------------------------------------------------------------- words, times, files

LANGUAGE_CODE = "en"
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "/static/"
STATIC_ROOT = Path(read("MUSTER_STATIC_ROOT", str(ROOT / "static-root")))
STATICFILES_DIRS = [ROOT / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}

# ---------------------------------------------------------------- logs

LOG_LEVEL = read("MUSTER_LOG_LEVEL")
LOGGING_CONFIG = "config.logging.configure"
LOGGING = logging_config(level=LOG_LEVEL, json=read("MUSTER_LOG_JSON"))
DJANGO_STRUCTLOG_CELERY_ENABLED = True
DJANGO_STRUCTLOG_TRUST_UPSTREAM_REQUEST_ID = True  # our own middleware made or checked it
DJANGO_STRUCTLOG_USER_ID_FIELD = "pk"
DJANGO_STRUCTLOG_IP_LOGGING_ENABLED = False  # our own middleware says it, and believes only known proxies
DJANGO_STRUCTLOG_STATUS_START_LOG_LEVEL = 10
DJANGO_STRUCTLOG_STATUS_2XX_LOG_LEVEL = 10 if read("MUSTER_QUIET_REQUESTS") else 20

# ---------------------------------------------------------------- Muster itself

# Names and defaults as given; every one can be set in the environment.
SCHEDULING_POLICY = read("SCHEDULING_POLICY")  # fifo, priority, fairshare
SCHEDULING_BACKFILL = read("SCHEDULING_BACKFILL")  # none, easy, conservative, aggressive, deadline
UNLIMITED_JOB_SECONDS = read("UNLIMITED_JOB_SECONDS")
QUOTA_PROVIDER = read("QUOTA_PROVIDER")  # local, k8s, slurm, or a name of QUOTA_PROVIDERS
# Providers of this site that decide about starts: name=module:Class; and the longest that planning waits for them.
QUOTA_PROVIDERS = read("QUOTA_PROVIDERS")
QUOTA_PROVIDER_CHECK_SECONDS = read("QUOTA_PROVIDER_CHECK_SECONDS")
MUSTER_REPEATS = (
    "scheduler.services.submission.idempotency"  # keeps the answers of requests with an Idempotency-Key
)
# Apps above the scheduler add to what it carries out and shows: rules of retention, and live topics by name.
MUSTER_MORE_RETENTION = ["notifications.services.retention.rules"]
MUSTER_LIVE_SOURCES = {"notifications": "notifications.realtime.source"}
QUOTA_USAGE_SOURCE = "scheduler.services.accounting.quota_usage.HeldAllocations"
QUOTA_FACTS_SOURCE = "scheduler.services.accounting.quota_impact.SchedulerFacts"
#: Of the cluster, what projects' limits should leave over for the system when they are added up.
QUOTA_HEADROOM_PERCENT = read("QUOTA_HEADROOM_PERCENT")
#: A grant that raises a limit by more than this percentage needs a second approver; 0 = never.
QUOTA_SECOND_APPROVER_PERCENT = read("QUOTA_SECOND_APPROVER_PERCENT")
SHARE_USAGE_SOURCE = "scheduler.state.load.share_usage.HeldShares"
# Fair share: how long past use counts (exponential, window, none), and what counts how much.
MUSTER_FAIRSHARE_MODE = read("MUSTER_FAIRSHARE_MODE")
MUSTER_FAIRSHARE_HALF_LIFE_SECONDS = read("MUSTER_FAIRSHARE_HALF_LIFE_SECONDS")
MUSTER_FAIRSHARE_WINDOW_SECONDS = read("MUSTER_FAIRSHARE_WINDOW_SECONDS")
MUSTER_FAIRSHARE_WEIGHTS = read("MUSTER_FAIRSHARE_WEIGHTS")
MUSTER_FAIRSHARE_DOMINANT = read("MUSTER_FAIRSHARE_DOMINANT")
# One series a project: off where there are thousands of them.
MUSTER_FAIRSHARE_METRICS = read("MUSTER_FAIRSHARE_METRICS")
#: Neither a boost nor ageing takes an effective priority above this; one that was asked for higher stays.
PRIORITY_BOOST_CAP = read("PRIORITY_BOOST_CAP")
#: What is set aside at a time for a job without any time limit.
LEDGER_OPEN_HOLD_SECONDS = read("LEDGER_OPEN_HOLD_SECONDS")
#: Whose used time is given back: "lost" (its node went silent), "preempted" (it was stopped for others).
LEDGER_FORGIVES = read("LEDGER_FORGIVES")
#: What the millionths of prices and money budgets are millionths of.
LEDGER_CURRENCY = read("LEDGER_CURRENCY")
#: One notice a person in so long, with all that came up meanwhile.
MUSTER_ALERT_DIGEST_SECONDS = read("MUSTER_ALERT_DIGEST_SECONDS")
#: Notices are mailed too once a sender is named; how, EMAIL_HOST and its like say.
MUSTER_ALERT_MAIL_FROM = read("MUSTER_ALERT_MAIL_FROM")
EMAIL_HOST = read("EMAIL_HOST")
EMAIL_PORT = read("EMAIL_PORT")
EMAIL_HOST_USER = read("EMAIL_HOST_USER")
EMAIL_HOST_PASSWORD = read("EMAIL_HOST_PASSWORD")
EMAIL_USE_TLS = read("EMAIL_USE_TLS")
EMAIL_TIMEOUT = 10
# Where links of mails lead; without it mails have none.
MUSTER_PUBLIC_URL = read("MUSTER_PUBLIC_URL")
# What happens to several jobs within so long of each other is one notification; a mail waits a moment for the rest
# of its burst, and comes again at most once in so long; a webhook waits less.
MUSTER_NOTIFICATION_BURST_SECONDS = read("MUSTER_NOTIFICATION_BURST_SECONDS")
MUSTER_MAIL_WAIT_SECONDS = read("MUSTER_MAIL_WAIT_SECONDS")
MUSTER_MAIL_AGAIN_SECONDS = read("MUSTER_MAIL_AGAIN_SECONDS")
MUSTER_WEBHOOK_WAIT_SECONDS = read("MUSTER_WEBHOOK_WAIT_SECONDS")
# Secrets of webhooks are derived from it; without it from the secret key. Old keys serve until secrets are rotated.
MUSTER_WEBHOOK_KEY = read("MUSTER_WEBHOOK_KEY")
MUSTER_WEBHOOK_OLD_KEYS = read("MUSTER_WEBHOOK_OLD_KEYS")
# Webhooks go to public addresses, and to these networks of the site; to these ports alone.
MUSTER_WEBHOOK_NETWORKS = read("MUSTER_WEBHOOK_NETWORKS")
MUSTER_WEBHOOK_PORTS = [int(port) for port in read("MUSTER_WEBHOOK_PORTS")]
K8S_QUOTA_NAMESPACE = read("K8S_QUOTA_NAMESPACE")
K8S_CREATE_RESOURCE_QUOTAS = read("K8S_CREATE_RESOURCE_QUOTAS")
SLURM_ACCOUNT_PREFIX = read("SLURM_ACCOUNT_PREFIX")
EXECUTOR_SLURM_REST_API_URL = read("EXECUTOR_SLURM_REST_API_URL")
EXECUTOR_SLURM_AUTH_TOKEN = read("EXECUTOR_SLURM_AUTH_TOKEN")
# Whose token that is; with `slurm` it may do everything. Without a token Slurm's commands are used instead,
# through SLURM_COMMAND if they are not on this machine ("ssh login1", "sudo -u slurm").
EXECUTOR_SLURM_USER = read("EXECUTOR_SLURM_USER")
SLURM_REST_VERSION = read("SLURM_REST_VERSION")
SLURM_CLUSTER = read("SLURM_CLUSTER")  # needed where slurmdbd knows several
SLURM_COMMAND = read("SLURM_COMMAND")
# The API server of Kubernetes; without a URL the client looks at KUBECONFIG, then into its own pod.
K8S_API_URL = read("K8S_API_URL")
K8S_API_TOKEN = read("K8S_API_TOKEN")
K8S_CA_FILE = read("K8S_CA_FILE")
K8S_CONTEXT = read("K8S_CONTEXT")
# A provider outside Muster: how long one call may take, how many failures in a row until it is left alone and
# for how long, how often a quiet project is looked at.
QUOTA_PROVIDER_TIMEOUT_SECONDS = read("QUOTA_PROVIDER_TIMEOUT_SECONDS")
QUOTA_PROVIDER_FAILURES = read("QUOTA_PROVIDER_FAILURES")
QUOTA_PROVIDER_PAUSE_SECONDS = read("QUOTA_PROVIDER_PAUSE_SECONDS")
QUOTA_PROVIDER_SYNC_SECONDS = read("QUOTA_PROVIDER_SYNC_SECONDS")
# While it is away, jobs of its projects wait, after a moment of grace; or they run, and only Muster enforces.
QUOTA_PROVIDER_WHEN_AWAY = read("QUOTA_PROVIDER_WHEN_AWAY")  # wait, run
QUOTA_PROVIDER_GRACE_SECONDS = read("QUOTA_PROVIDER_GRACE_SECONDS")
# Zones and racks of nodes come from there.
INVENTORY_SERVICE_URL = read("INVENTORY_SERVICE_URL")
INVENTORY_SERVICE_TOKEN = read("INVENTORY_SERVICE_TOKEN")
CHECKPOINT_PATH = read("CHECKPOINT_PATH")

# A scope's lease, and how long a silent node may keep its work before it counts as lost.
MUSTER_LEASE_SECONDS = read("MUSTER_LEASE_SECONDS")
PLANNER_CHECK_SECONDS = read("MUSTER_PLANNER_CHECK_SECONDS")
MUSTER_NODE_SILENT_SECONDS = read("MUSTER_NODE_SILENT_SECONDS")
# Longer than a restart of the server takes, or its repair: until then a node that is cut off works on, then
# it stops its jobs by itself, and only after that are they started elsewhere.
MUSTER_NODE_LOST_SECONDS = read("MUSTER_NODE_LOST_SECONDS")
# Where jobs of several people fail within a time, the node is at fault: it takes no more.
MUSTER_QUARANTINE_PEOPLE = read("MUSTER_QUARANTINE_PEOPLE")
MUSTER_QUARANTINE_FAILURES = read("MUSTER_QUARANTINE_FAILURES")
MUSTER_QUARANTINE_SECONDS = read("MUSTER_QUARANTINE_SECONDS")
# What ended on a node lately says how reliable and how fast it is.
MUSTER_NODE_SCORE_HALF_LIFE_DAYS = read("MUSTER_NODE_SCORE_HALF_LIFE_DAYS")
# An agent's sync call is held open this long when there is nothing to say.
MUSTER_SYNC_HOLD_SECONDS = read("MUSTER_SYNC_HOLD_SECONDS")
# From SIGTERM to SIGKILL.
MUSTER_GRACE_SECONDS = read("MUSTER_GRACE_SECONDS")
# Of each output stream of a task; the rest is dropped, visibly.
MUSTER_LOG_CAP_BYTES = read("MUSTER_LOG_CAP_BYTES")
# Of a node's disk, for each task.
MUSTER_SCRATCH_MIB = read("MUSTER_SCRATCH_MIB")
# What jobs leave in their working folders: for how long nodes keep it, and how much.
MUSTER_KEEP_RESULTS_DAYS = read("MUSTER_KEEP_RESULTS_DAYS")
MUSTER_RESULTS_UNTIL_FETCHED = read("MUSTER_RESULTS_UNTIL_FETCHED")
MUSTER_RESULTS_JOB_MIB = read("MUSTER_RESULTS_JOB_MIB")
MUSTER_CHECKPOINT_MIB = read("MUSTER_CHECKPOINT_MIB")
MUSTER_UPLOAD_MIB = read("MUSTER_UPLOAD_MIB")
MUSTER_UPLOAD_FILES = read("MUSTER_UPLOAD_FILES")
MUSTER_UPLOADS_PERSON_MIB = read("MUSTER_UPLOADS_PERSON_MIB")
MUSTER_KEEP_UPLOADS_DAYS = read("MUSTER_KEEP_UPLOADS_DAYS")
MUSTER_RESULTS_PERSON_MIB = read("MUSTER_RESULTS_PERSON_MIB")
MUSTER_RESULTS_NODE_MIB = read("MUSTER_RESULTS_NODE_MIB")
MUSTER_RESULTS_NOTICE_HOURS = read("MUSTER_RESULTS_NOTICE_HOURS")
# Files that jobs ask to be stored: for how long, and how much of one job.
MUSTER_KEEP_ARTIFACTS_DAYS = read("MUSTER_KEEP_ARTIFACTS_DAYS")
MUSTER_ARTIFACTS_JOB_MIB = read("MUSTER_ARTIFACTS_JOB_MIB")
# Where artefacts go: to a folder, by default one in the state folder, or to a bucket; with keys encrypted.
MUSTER_STORAGE = read("MUSTER_STORAGE")
MUSTER_STATE = read("MUSTER_STATE")
if not MUSTER_STORAGE and MUSTER_STATE:
    MUSTER_STORAGE = (Path(MUSTER_STATE).expanduser().resolve() / "storage").as_uri()
MUSTER_STORAGE_KEYS = read("MUSTER_STORAGE_KEYS")
try:
    storage_setting(MUSTER_STORAGE, MUSTER_STORAGE_KEYS)
except ValueError as error:
    raise ImproperlyConfigured(str(error)) from None
# What is kept, in days.
MUSTER_KEEP_CYCLES_DAYS = read("MUSTER_KEEP_CYCLES_DAYS")
MUSTER_KEEP_LOGS_DAYS = read("MUSTER_KEEP_LOGS_DAYS")
# Of these 0 days are without limit.
MUSTER_KEEP_JOBS_DAYS = read("MUSTER_KEEP_JOBS_DAYS")
MUSTER_KEEP_EVENTS_DAYS = read("MUSTER_KEEP_EVENTS_DAYS")
MUSTER_KEEP_FORECASTS_DAYS = read("MUSTER_KEEP_FORECASTS_DAYS")
MUSTER_KEEP_SHARES_DAYS = read("MUSTER_KEEP_SHARES_DAYS")
#: Lines of the ledger, before they are added up by the day; and the audit trail, before a checkpoint stands for it.
MUSTER_KEEP_LEDGER_DAYS = read("MUSTER_KEEP_LEDGER_DAYS")
MUSTER_KEEP_AUDIT_DAYS = read("MUSTER_KEEP_AUDIT_DAYS")
MUSTER_KEEP_ALERTS_DAYS = read("MUSTER_KEEP_ALERTS_DAYS")
MUSTER_KEEP_DRIFT_DAYS = read("MUSTER_KEEP_DRIFT_DAYS")
MUSTER_KEEP_NOTIFICATIONS_DAYS = read("MUSTER_KEEP_NOTIFICATIONS_DAYS")
# Joins agents to this server; `manage.py up` makes one for its own nodes.
MUSTER_JOIN_TOKEN = read("MUSTER_JOIN_TOKEN")
# Whose disks are watched: the state folder of `manage.py up`, and what lies in it. Below the first number of MiB
# operators are warned; below the second everybody is, for then things may be refused.
MUSTER_DISK_FOLDERS = read("MUSTER_DISK_FOLDERS", [MUSTER_STATE])
MUSTER_DISK_FOLDERS = [folder for folder in MUSTER_DISK_FOLDERS if folder]
MUSTER_DISK_LOW_MIB = read("MUSTER_DISK_LOW_MIB")
MUSTER_DISK_FULL_MIB = read("MUSTER_DISK_FULL_MIB")
# A scraper gives this as a bearer token; without one only operators who are signed in read /metrics. `make run`
# makes one in its state folder.
MUSTER_METRICS_TOKEN = read("MUSTER_METRICS_TOKEN")
# Demo people, projects and nodes; their passwords work from a loopback address only, and never in production.
MUSTER_DEMO = False
