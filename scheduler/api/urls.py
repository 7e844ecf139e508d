"""The addresses of API version 1; those of projects, tokens, audit and quotas are included."""

from __future__ import annotations

from importlib.util import find_spec

from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from config.problems import api_not_found
from scheduler.api import jobs

#: A job's number or id.
JOB = r"(?P<ref>[0-9]{1,18}|[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12})"

urlpatterns = [
    path("schema", SpectacularAPIView.as_view(), name="api-schema"),
    path("docs", SpectacularSwaggerView.as_view(url_name="api-schema"), name="api-docs"),
    path("jobs", jobs.Jobs.as_view(), name="api-jobs"),
    path("jobs:bulk", jobs.BulkJobs.as_view(), name="api-jobs-bulk"),
    re_path(rf"^jobs/{JOB}$", jobs.JobDetail.as_view(), name="api-job"),
    re_path(rf"^jobs/{JOB}/hold$", jobs.HoldJob.as_view(), name="api-job-hold"),
    re_path(rf"^jobs/{JOB}/release$", jobs.ReleaseJob.as_view(), name="api-job-release"),
    re_path(rf"^jobs/{JOB}/requeue$", jobs.RequeueJob.as_view(), name="api-job-requeue"),
]

for prefix, module in [
    ("agent/", "scheduler.api.agent_urls"),
    ("", "quotas.api.urls"),
    ("", "accounts.api.urls"),
]:
    if find_spec(module):
        urlpatterns.append(path(prefix, include(module)))

urlpatterns.append(re_path(r"^(?P<path>.*)$", api_not_found))
