"""Kubernetes and Slurm as providers of quotas."""

from __future__ import annotations

from typing import Final

from config.settings.declared.setting import Setting

SETTINGS: Final = (
    Setting(
        "QUOTA_PROVIDER",
        "str",
        "local",
        "Provider of new quotas.",
        choices=("local", "k8s", "slurm"),
        or_named_in="QUOTA_PROVIDERS",
    ),
    Setting(
        "QUOTA_PROVIDERS",
        "list",
        [],
        "Providers of this site that decide about starts, such as `site=site_quota:SiteQuota`.",
        form="provider",
    ),
    Setting(
        "QUOTA_PROVIDER_CHECK_SECONDS",
        "float",
        2.0,
        "Longest that planning, a submission or a preview waits for providers of `QUOTA_PROVIDERS`.",
        "s",
        least=0.05,
        most=10,
    ),
    Setting("QUOTA_PROVIDER_TIMEOUT_SECONDS", "float", 10.0, "Timeout of one call.", "s", least=0.1),
    Setting(
        "QUOTA_PROVIDER_FAILURES",
        "int",
        3,
        "Failures in a row after which the provider is paused.",
        "calls",
        least=1,
    ),
    Setting("QUOTA_PROVIDER_PAUSE_SECONDS", "int", 30, "Length of the pause.", "s"),
    Setting(
        "QUOTA_PROVIDER_SYNC_SECONDS",
        "int",
        300,
        "Interval of comparing a project without changes.",
        "s",
        least=1,
    ),
    Setting(
        "QUOTA_PROVIDER_WHEN_AWAY",
        "str",
        "wait",
        "Jobs while the provider is unreachable: wait, run.",
        choices=("wait", "run"),
    ),
    Setting("QUOTA_PROVIDER_GRACE_SECONDS", "int", 60, "Time before jobs wait.", "s"),
    Setting("SLURM_ACCOUNT_PREFIX", "str", "project-", "Prefix of Slurm accounts of projects."),
    Setting(
        "EXECUTOR_SLURM_REST_API_URL",
        "str",
        "http://slurm-controller:6820",
        "Address of slurmrestd.",
        form="url",
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
        form="url",
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
)
