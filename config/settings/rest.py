"""The API's knobs: who may call, how answers look, how often one may ask, and the text of its schema."""

from __future__ import annotations

from config.settings.declared import read

#: The most jobs one request to jobs:bulk may carry, and the most elements of one array.
MUSTER_MAX_BULK = read("MUSTER_MAX_BULK")
MUSTER_MAX_ARRAY_SIZE = read("MUSTER_MAX_ARRAY_SIZE")
#: The rows that one request may make once all of it is multiplied out: jobs of its arrays, and what they wait for.
MUSTER_MAX_ROWS = read("MUSTER_MAX_ROWS")
#: The text of commands, scripts and environments that those rows hold together.
MUSTER_MAX_TEXT_MIB = read("MUSTER_MAX_TEXT_MIB")
#: The rows of one file that is streamed.
MUSTER_MAX_EXPORT_ROWS = read("MUSTER_MAX_EXPORT_ROWS")
#: How old the figures may be that say whether a request could ever fit.
MUSTER_KILL_INVALID_DEPEND = read("MUSTER_KILL_INVALID_DEPEND")
MUSTER_SHAPES_SECONDS = read("MUSTER_SHAPES_SECONDS")
#: Requests a second that one token or person may make on average, and at once; 0 takes the limit away.
MUSTER_API_RATE = read("MUSTER_API_RATE")
MUSTER_API_BURST = read("MUSTER_API_BURST")

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "accounts.api.authentication.BearerAuthentication",
        "accounts.api.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["accounts.api.permissions.ScopePermission"],
    "DEFAULT_PARSER_CLASSES": ["infra.api.rest.CleanJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PAGINATION_CLASS": "infra.api.rest.NewestFirst",
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_THROTTLE_CLASSES": ["config.http.rates.Throttle"],
    "DEFAULT_SCHEMA_CLASS": "infra.api.schema.Schema",
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "infra.api.rest.Negotiation",
    "EXCEPTION_HANDLER": "accounts.api.refusals.handle_exception",
    "PAGE_SIZE": 100,
    "UNICODE_JSON": True,
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Muster",
    "DESCRIPTION": "A job scheduler and quota portal for shared compute. Amounts of a job are per task. "
    "Errors are RFC 9457 problems with a stable `code`. Send an `Idempotency-Key` with a POST to be able to "
    "repeat it safely.",
    "VERSION": "1.0.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_NAME_OVERRIDES": {
        "JobStateEnum": [
            "queued",
            "scheduled",
            "running",
            "preempted",
            "completed",
            "failed",
            "cancelled",
        ],
        "NodeStateEnum": ["up", "unknown", "down"],
        "GpuStateEnum": ["free", "shared", "allocated", "unhealthy", "unavailable"],
        "NotificationKindEnum": "notifications.api.serializers.KIND_CHOICES",
        "WebhookKindEnum": "notifications.api.serializers.SENT_CHOICES",
        "StandingModeEnum": "quotas.core.decay.MODE_CHOICES",
        "LineResourceEnum": "quotas.models.QuotaResource",
        "QueueIsolationEnum": "scheduler.models.queue.ISOLATION_CHOICES",
        "FolderUploadStateEnum": "scheduler.models.uploads.folder_upload.FolderUploadState",
        "ShadowRunStateEnum": "scheduler.models.policies.shadow_run.ShadowState",
        "ReservationStateEnum": ["requested", "declined", "planned", "active", "ended", "cancelled"],
    },
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "persistAuthorization": False, "tryItOutEnabled": False},
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "infra.api.schema.describe_errors",
    ],
}
