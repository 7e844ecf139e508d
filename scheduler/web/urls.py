"""Addresses of the pages about work and machines."""

from __future__ import annotations

from django.urls import path

from scheduler.web import (
    cluster,
    forecasts,
    home,
    job,
    jobs,
    moves,
    queues,
    quota,
    submit,
    usage,
)
from scheduler.web.changes import arrays
from scheduler.web.reservations import pages as reservations
from scheduler.web.results import artifacts, checkpoints, working_folder
from scheduler.web.submissions import uploads

urlpatterns = [
    path("", home.show, name="home"),
    path("troubles/", home.troubles, name="troubles"),
    path("submit/", submit.show, name="submit"),
    path("uploads/", uploads.index, name="uploads"),
    path("uploads/<uuid:upload>/delete/", uploads.delete, name="upload-delete"),
    path("submit/preview/", submit.preview, name="submit-preview"),
    path("jobs/", jobs.index, name="jobs"),
    path("jobs/bulk/", jobs.bulk, name="jobs-bulk"),
    path("jobs/<int:number>/", job.show, name="job"),
    path("jobs/<int:number>/log/", job.download_log, name="job-log"),
    path("jobs/<int:number>/artifacts/file/", artifacts.file, name="job-artifact-file"),
    path("jobs/<int:number>/artifacts/archive/", artifacts.archive, name="job-artifact-archive"),
    path("jobs/<int:number>/artifacts/remove/", artifacts.remove, name="job-artifacts-remove"),
    path("jobs/<int:number>/results/file/", working_folder.file, name="job-result-file"),
    path("jobs/<int:number>/results/archive/", working_folder.archive, name="job-result-archive"),
    path("jobs/<int:number>/checkpoints/take/", checkpoints.take, name="job-checkpoint-take"),
    path(
        "jobs/<int:number>/checkpoints/<uuid:checkpoint>/remove/",
        checkpoints.remove,
        name="job-checkpoint-remove",
    ),
    path(
        "jobs/<int:number>/checkpoints/<uuid:checkpoint>/archive/",
        checkpoints.archive,
        name="job-checkpoint-archive",
    ),
    path(
        "jobs/<int:number>/checkpoints/<uuid:checkpoint>/manifest/",
        checkpoints.manifest,
        name="job-checkpoint-manifest",
    ),
    path("jobs/<int:number>/results/remove/", working_folder.remove, name="job-results-remove"),
    path("jobs/<int:number>/<str:verb>/", job.act, name="job-act"),
    path("jobs/<int:number>_<int:index>/", arrays.element, name="array-element"),
    path("arrays/<int:number>/", arrays.show, name="array"),
    path("arrays/<int:number>/<str:verb>/", arrays.act, name="array-act"),
    path("cluster/", cluster.index, name="cluster"),
    path("nodes/<int:node_id>/", cluster.show, name="node"),
    path("nodes/<int:node_id>/drain-plan/", moves.drain_plan, name="node-drain-plan"),
    path("nodes/<int:node_id>/<str:verb>/", cluster.act, name="node-act"),
    path("rebalance/", moves.rebalance, name="rebalance"),
    path("forecasts/", forecasts.show, name="forecasts"),
    path("queues/", queues.index, name="queues"),
    path("queues/<int:queue_id>/deadlines/", queues.deadlines, name="queue-deadlines"),
    path("queues/<int:queue_id>/<str:verb>/", queues.act, name="queue-act"),
    path("reservations/", reservations.index, name="reservations"),
    path("reservations/new/", reservations.ask, name="reservation-ask"),
    path("reservations/<uuid:ref>/", reservations.show, name="reservation"),
    path("reservations/<uuid:ref>/<str:verb>/", reservations.act, name="reservation-act"),
    path("quota/", quota.index, name="quota"),
    path("usage/", usage.index, name="usage"),
    path("usage/ledger/", usage.lines, name="ledger"),
    path("usage/jobs/", usage.efficiency, name="efficiency"),
    path("usage/drift/", usage.drift, name="drift"),
    path("usage/notices/<int:notice_id>/read/", usage.put_away, name="notice-read"),
]
