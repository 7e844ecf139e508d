"""The addresses of API version 1; those of projects, tokens, audit and quotas are included."""

from __future__ import annotations

from importlib.util import find_spec

from django.urls import URLPattern, URLResolver, include, path, re_path
from drf_spectacular.views import SpectacularSwaggerSplitView

from infra.api.problems import api_not_found
from scheduler.api import (
    datasets,
    efficiency,
    job_reads,
    jobs,
    machines,
    planning,
    queues,
    reservations,
    schema,
    slurm,
)
from scheduler.api.checkpoints import job_checkpoints
from scheduler.api.many import arrays, by_filter
from scheduler.api.moves import drains, job_moves
from scheduler.api.policies import profiles, shadow_runs
from scheduler.api.results import artifacts, working_folder
from scheduler.api.submissions import uploads
from scheduler.configuration.api import Configuration

#: A job's number or id, or an element of an array as 123_3.
JOB = r"(?P<ref>[0-9]{1,18}(?:_[0-9]{1,7})?|[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12})"

urlpatterns: list[URLPattern | URLResolver] = [
    path("schema", schema.ApiSchema.as_view(), name="api-schema"),
    # The split form: our content policy lets no script inside a page run.
    path(
        "docs",
        SpectacularSwaggerSplitView.as_view(url_name="api-schema", template_name="scheduler/api_docs.html"),
        name="api-docs",
    ),
    path("jobs", jobs.Jobs.as_view(), name="api-jobs"),
    path("arrays/<int:number>", arrays.ArrayDetail.as_view(), name="api-array"),
    path("arrays/<int:number>/hold", arrays.HoldArray.as_view(), name="api-array-hold"),
    path("arrays/<int:number>/release", arrays.ReleaseArray.as_view(), name="api-array-release"),
    path("jobs:act", by_filter.ActOnJobs.as_view(), name="api-jobs-act"),
    path("jobs:bulk", jobs.BulkJobs.as_view(), name="api-jobs-bulk"),
    path("jobs/preview", job_reads.JobPreview.as_view(), name="api-job-preview"),
    path("jobs/efficiency", efficiency.JobUses.as_view(), name="api-job-efficiency"),
    path("jobs/state", job_reads.JobStates.as_view(), name="api-job-states"),
    path("jobs/scheduler/info", planning.SchedulerInfo.as_view(), name="api-scheduler-info"),
    path("jobs/scheduler/trigger", planning.SchedulerTrigger.as_view(), name="api-scheduler-trigger"),
    re_path(rf"^jobs/{JOB}$", jobs.JobDetail.as_view(), name="api-job"),
    re_path(rf"^jobs/{JOB}/hold$", jobs.HoldJob.as_view(), name="api-job-hold"),
    re_path(rf"^jobs/{JOB}/release$", jobs.ReleaseJob.as_view(), name="api-job-release"),
    re_path(rf"^jobs/{JOB}/requeue$", jobs.RequeueJob.as_view(), name="api-job-requeue"),
    re_path(rf"^jobs/{JOB}/boost$", jobs.BoostJob.as_view(), name="api-job-boost"),
    re_path(rf"^jobs/{JOB}/events$", job_reads.JobEvents.as_view(), name="api-job-events"),
    re_path(rf"^jobs/{JOB}/elements$", jobs.JobElementsView.as_view(), name="api-job-elements"),
    re_path(
        rf"^jobs/{JOB}/elements/(?P<index>[0-9]{{1,9}})/cancel$",
        jobs.CancelElement.as_view(),
        name="api-job-element-cancel",
    ),
    re_path(rf"^jobs/{JOB}/members$", job_reads.JobMembers.as_view(), name="api-job-members"),
    re_path(rf"^jobs/{JOB}/logs$", job_reads.JobLogs.as_view(), name="api-job-logs"),
    re_path(rf"^jobs/{JOB}/artifacts$", artifacts.JobArtifacts.as_view(), name="api-job-artifacts"),
    re_path(
        rf"^jobs/{JOB}/artifacts/file$", artifacts.JobArtifactFile.as_view(), name="api-job-artifact-file"
    ),
    re_path(
        rf"^jobs/{JOB}/artifacts/archive$",
        artifacts.JobArtifactArchive.as_view(),
        name="api-job-artifact-archive",
    ),
    re_path(rf"^jobs/{JOB}/results$", working_folder.JobResults.as_view(), name="api-job-results"),
    re_path(
        rf"^jobs/{JOB}/results/files$", working_folder.JobResultFiles.as_view(), name="api-job-result-files"
    ),
    re_path(
        rf"^jobs/{JOB}/results/file$", working_folder.JobResultFile.as_view(), name="api-job-result-file"
    ),
    re_path(
        rf"^jobs/{JOB}/results/archive$",
        working_folder.JobResultArchive.as_view(),
        name="api-job-result-archive",
    ),
    re_path(rf"^jobs/{JOB}/usage$", job_reads.JobUsageView.as_view(), name="api-job-usage"),
    re_path(rf"^jobs/{JOB}/why$", job_reads.JobWhy.as_view(), name="api-job-why"),
    re_path(rf"^jobs/{JOB}/checkpoint$", jobs.JobCheckpoint.as_view(), name="api-job-checkpoint"),
    re_path(
        rf"^jobs/{JOB}/checkpoints$", job_checkpoints.JobCheckpoints.as_view(), name="api-job-checkpoints"
    ),
    re_path(
        rf"^jobs/{JOB}/checkpoints/(?P<checkpoint>[0-9a-f-]{{36}})$",
        job_checkpoints.JobCheckpointDetail.as_view(),
        name="api-job-checkpoint-detail",
    ),
    re_path(
        rf"^jobs/{JOB}/checkpoints/(?P<checkpoint>[0-9a-f-]{{36}})/manifest$",
        job_checkpoints.JobCheckpointManifest.as_view(),
        name="api-job-checkpoint-manifest",
    ),
    re_path(
        rf"^jobs/{JOB}/checkpoints/(?P<checkpoint>[0-9a-f-]{{36}})/archive$",
        job_checkpoints.JobCheckpointArchive.as_view(),
        name="api-job-checkpoint-archive",
    ),
    re_path(rf"^jobs/{JOB}/migrate$", job_moves.MigrateJob.as_view(), name="api-job-migrate"),
    re_path(rf"^jobs/{JOB}/moves$", job_moves.JobMoves.as_view(), name="api-job-moves"),
    re_path(rf"^jobs/{JOB}/resize$", jobs.ResizeJob.as_view(), name="api-job-resize"),
    path("datasets", datasets.Datasets.as_view(), name="api-datasets"),
    path("datasets/<int:number>", datasets.DatasetDetail.as_view(), name="api-dataset"),
    path("uploads", uploads.Uploads.as_view(), name="api-uploads"),
    path("uploads/<uuid:upload>", uploads.UploadDetail.as_view(), name="api-upload"),
    path("uploads/<uuid:upload>/pieces/<int:number>", uploads.UploadPiece.as_view(), name="api-upload-piece"),
    path("uploads/<uuid:upload>/finish", uploads.FinishUpload.as_view(), name="api-upload-finish"),
    path("slurm/sbatch", slurm.Sbatch.as_view(), name="api-sbatch"),
    path("slurm/squeue", slurm.Squeue.as_view(), name="api-squeue"),
    path("nodes", machines.Nodes.as_view(), name="api-nodes"),
    path("nodes/<str:ref>", machines.NodeDetail.as_view(), name="api-node"),
    path("nodes/<str:ref>/cordon", machines.CordonNode.as_view(), name="api-node-cordon"),
    path("nodes/<str:ref>/drain", drains.DrainNode.as_view(), name="api-node-drain"),
    path("nodes/<str:ref>/uncordon", machines.UncordonNode.as_view(), name="api-node-uncordon"),
    path("drains", drains.Drains.as_view(), name="api-drains"),
    path("rebalance", drains.Rebalance.as_view(), name="api-rebalance"),
    path("gpus", machines.Gpus.as_view(), name="api-gpus"),
    path("topology", machines.Topology.as_view(), name="api-topology"),
    path("reservations", reservations.Reservations.as_view(), name="api-reservations"),
    path(
        "reservations/requests", reservations.ReservationRequests.as_view(), name="api-reservation-requests"
    ),
    path(
        "reservations/<str:ref>/approve",
        reservations.ReservationApproval.as_view(),
        name="api-reservation-approve",
    ),
    path(
        "reservations/<str:ref>/decline",
        reservations.ReservationDecline.as_view(),
        name="api-reservation-decline",
    ),
    path("reservations/<str:ref>/cost", reservations.ReservationCost.as_view(), name="api-reservation-cost"),
    path("reservations/<str:ref>", reservations.ReservationDetail.as_view(), name="api-reservation"),
    path("profiles", profiles.Profiles.as_view(), name="api-profiles"),
    path("profiles/<str:name>", profiles.ProfileDetail.as_view(), name="api-profile"),
    path("profiles/<str:name>/versions", profiles.ProfileVersions.as_view(), name="api-profile-versions"),
    path("profiles/<str:name>/versions/diff", profiles.ProfileVersionDiff.as_view(), name="api-profile-diff"),
    path("profiles/<str:name>/rollback", profiles.RollbackProfile.as_view(), name="api-profile-rollback"),
    path("shadow-runs", shadow_runs.ShadowRuns.as_view(), name="api-shadow-runs"),
    path("shadow-runs/<int:number>", shadow_runs.ShadowRunDetail.as_view(), name="api-shadow-run"),
    path("shadow-runs/<int:number>/stop", shadow_runs.StopShadowRun.as_view(), name="api-shadow-run-stop"),
    path(
        "shadow-runs/<int:number>/publish",
        shadow_runs.PublishShadowRun.as_view(),
        name="api-shadow-run-publish",
    ),
    path("configuration", Configuration.as_view(), name="api-configuration"),
    path("queue", queues.QueueSummary.as_view(), name="api-queue"),
    path("queues", queues.Queues.as_view(), name="api-queues"),
]

# Quotas live under queues/quota/, which must not be taken for a queue's name.
for prefix, module in [
    ("agent/", "scheduler.api.agent_urls"),
    ("", "quotas.api.urls"),
    ("", "accounts.api.urls"),
]:
    if find_spec(module):
        urlpatterns.append(path(prefix, include(module)))

urlpatterns.append(
    path("queues/<str:ref>/deadlines", queues.QueueDeadlines.as_view(), name="api-queue-deadlines")
)
urlpatterns.append(path("queues/<str:ref>", queues.QueueDetail.as_view(), name="api-queue-detail"))
urlpatterns.append(re_path(r"^(?P<path>.*)$", api_not_found))
