"""Quotas that Kubernetes enforces itself: one ResourceQuota `project-{id}` in the namespace of the jobs.

Off unless K8S_CREATE_RESOURCE_QUOTAS is set: then nothing is asked there and nothing written, and Muster's own
rows are all there is.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import urllib3
from django.conf import settings

from quotas.core.external_limits import Bound, Mapped
from quotas.core.units import k8s
from quotas.models import Provider
from quotas.providers.base import Refused, Unreachable
from quotas.providers.external import (
    ExternalQuotaProvider,
    Found,
    Scope,
    timeout_seconds,
)

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

#: A ResourceQuota that somebody else writes at the same moment is read and written again so often.
TRIES: Final = 4
LABELS: Final = {"app.kubernetes.io/managed-by": "muster"}

T = TypeVar("T")
_apis: dict[tuple[Any, ...], CoreV1Api] = {}


class K8sQuotaProvider(ExternalQuotaProvider):
    name = Provider.K8S.value

    def __init__(self, api: CoreV1Api | None = None) -> None:
        self._api = api

    @property
    def off_text(self) -> str:
        if settings.K8S_CREATE_RESOURCE_QUOTAS:
            return ""
        return (
            "K8S_CREATE_RESOURCE_QUOTAS is not set, so Muster does not write to Kubernetes and "
            "enforces limits itself."
        )

    def values(self, bounds: Sequence[Bound], scope: Scope) -> Mapped:
        return k8s.values_of(bounds)

    def read(self, scope: Scope) -> Found:
        quota = self._get(scope)
        if quota is None:
            return Found()
        hard, used = (quota.spec.hard if quota.spec else None), (quota.status.used if quota.status else None)
        try:
            return Found(k8s.parse_all(hard or {}), k8s.parse_all(used or {}), {}, quota)
        except k8s.BadQuantity as bad:
            raise Refused(f"ResourceQuota {quota.metadata.name} cannot be read: {bad}.") from bad

    def write(self, scope: Scope, found: Found, changes: Mapping[str, int | None]) -> None:
        """Create the object, or replace it as it was read; read again when somebody was faster."""
        quota, namespace = found.raw, namespace_of(scope)
        for _ in range(TRIES):
            if quota is None:
                made = self._ask(
                    scope, lambda api: api.create_namespaced_resource_quota(namespace, _new(scope, changes))
                )
            else:
                changed = _changed(quota, changes)
                name = quota.metadata.name
                replace = _replacement(name, namespace, changed)
                made = self._ask(scope, replace)
            if made is not None:
                return
            quota = self._get(scope)
        raise Unreachable(f"ResourceQuota {quota_name(scope)} is being changed concurrently.")

    def show(self, key: str, value: int | None) -> str:
        return k8s.show(key, value)

    def _get(self, scope: Scope) -> Any:
        name, namespace = quota_name(scope), namespace_of(scope)
        return self._ask(scope, lambda api: api.read_namespaced_resource_quota(name, namespace))

    def _ask(self, scope: Scope, call: Callable[[Any], T]) -> T | None:
        """None when there is no such object, or it was changed in between; raises Unreachable and Refused."""
        from kubernetes.client.exceptions import ApiException
        from kubernetes.config.config_exception import ConfigException

        try:
            return call(self._client())
        except ConfigException as error:
            raise Refused(
                f"The address of Kubernetes is not configured: {str(error)[:160]}; set K8S_API_URL or KUBECONFIG."
            ) from error
        except ApiException as error:
            _judge(error, namespace_of(scope))
            return None
        except urllib3.exceptions.TimeoutError as error:
            raise Unreachable(f"Kubernetes did not answer within {timeout_seconds():g} s.") from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            text = str(error).rpartition(": ")[2][:160]
            raise Unreachable(f"Kubernetes is unreachable: {text}.") from error

    def _client(self) -> CoreV1Api:
        if self._api is None:
            self._api = _api_from_settings()
        client: CoreV1Api = _with_timeouts(self._api)
        return client


def _replacement(name: str, namespace: str, changed: Any) -> Callable[[CoreV1Api], Any]:
    """The call that replaces the object as it was read."""
    return lambda api: api.replace_namespaced_resource_quota(name, namespace, changed)


def quota_name(scope: Scope) -> str:
    return f"project-{scope.project_id}"


def namespace_of(scope: Scope) -> str:
    """The one of the setting; `{id}` and `{slug}` in it give each project its own."""
    return (
        str(settings.K8S_QUOTA_NAMESPACE).replace("{id}", str(scope.project_id)).replace("{slug}", scope.slug)
    )


def _new(scope: Scope, changes: Mapping[str, int | None]) -> Any:
    from kubernetes.client import V1ObjectMeta, V1ResourceQuota, V1ResourceQuotaSpec

    return V1ResourceQuota(
        api_version="v1",
        kind="ResourceQuota",
        metadata=V1ObjectMeta(
            name=quota_name(scope), labels=dict(LABELS), annotations={"muster/project": scope.slug}
        ),
        spec=V1ResourceQuotaSpec(hard=_merged({}, changes)),
    )


def _changed(quota: Any, changes: Mapping[str, int | None]) -> Any:
    """With its resourceVersion, so that the server refuses it when it is no longer what was read."""
    from kubernetes.client import V1ResourceQuotaSpec

    changed = copy.deepcopy(quota)
    if changed.spec is None:
        changed.spec = V1ResourceQuotaSpec()
    changed.spec.hard = _merged(changed.spec.hard or {}, changes)
    changed.status = None
    return changed


def _merged(hard: Mapping[str, str], changes: Mapping[str, int | None]) -> dict[str, str]:
    merged = dict(hard)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = k8s.show(key, value)
    return merged


def _judge(error: Any, namespace: str) -> None:
    """What an answer that is no success means; returns for those that reading again settles."""
    status, text = int(error.status or 0), _message(error)
    if status == 404:
        if f'namespaces "{namespace}"' in text:
            raise Refused(f"Kubernetes has no namespace {namespace}; make it, or set K8S_QUOTA_NAMESPACE.")
        return
    if status == 409:
        return
    if status == 401:
        raise Refused("Kubernetes does not accept Muster's credentials; renew them.")
    if status == 403:
        raise Refused(f"Kubernetes does not allow it: {text}")
    if status in (429, 503):
        after = (error.headers or {}).get("Retry-After", "")
        seconds = min(int(after), 3600) if after.isascii() and after.isdecimal() else 0
        raise Unreachable(f"Kubernetes is too busy ({status}).", retry_after_seconds=seconds)
    if status >= 500 or status == 0:
        raise Unreachable(f"Kubernetes answered {status or 'nothing'}: {text or error.reason}")
    raise Refused(f"Kubernetes refuses ({status}): {text or error.reason}")


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])[:300]
    except (TypeError, ValueError, KeyError):
        return str(error.body or "")[:160]


def _api_from_settings() -> CoreV1Api:
    """One client, and so one pool of connections, for each way of reaching the server."""
    from kubernetes import client, config

    key = (settings.K8S_API_URL, settings.K8S_API_TOKEN, settings.K8S_CA_FILE, settings.K8S_CONTEXT)
    if key not in _apis:
        configuration = client.Configuration()
        if settings.K8S_API_URL:
            configuration.host = settings.K8S_API_URL.rstrip("/")
            if settings.K8S_API_TOKEN:
                configuration.api_key = {"authorization": f"Bearer {settings.K8S_API_TOKEN}"}
            if settings.K8S_CA_FILE:
                configuration.ssl_ca_cert = settings.K8S_CA_FILE
        elif os.environ.get("KUBECONFIG") or Path("~/.kube/config").expanduser().exists():
            config.load_kube_config(
                config_file=os.environ.get("KUBECONFIG") or "~/.kube/config",
                context=settings.K8S_CONTEXT or None,
                client_configuration=configuration,
            )
        else:
            config.load_incluster_config(client_configuration=configuration)
        configuration.retries = False
        _apis[key] = client.CoreV1Api(client.ApiClient(configuration))
    return _apis[key]


class _TimedApi:
    """The client with a time-out on every call, which otherwise may never end."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._api, name)
        seconds = timeout_seconds()
        return lambda *args, **kwargs: call(*args, _request_timeout=(min(seconds, 5), seconds), **kwargs)


def _with_timeouts(api: Any) -> Any:
    return _TimedApi(api)
