"""Job charges: how much a job counts on each quota line of its payer, before and after its devices are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from quotas.core.gpu_models import model_matches
from quotas.core.limits import charge
from scheduler.core.cluster.device_index import DeviceIndex
from scheduler.core.cluster.quota_paths import QuotaPaths
from scheduler.core.snapshot.request_classes import RequestClass
from scheduler.core.snapshot.snapshot import Snapshot

#: (quota row, amount) of each line that a job counts on, each line before the one above it.
LineCharges = tuple[tuple[int, int], ...]


class OpenLine(NamedTuple):
    """A line for one GPU model that counts a job only as far as the job is given such devices."""

    line: int
    amount: int  # if all its devices are such
    models: frozenset[str]  # of those the job could be given


class JobCharges:
    """What jobs count on quota lines, found once for all jobs of equal payer, request class and tasks."""

    def __init__(self, snapshot: Snapshot, paths: QuotaPaths, devices: DeviceIndex) -> None:
        self._classes, self._quotas = snapshot.classes, snapshot.quotas
        self._lines_of, self._devices = paths.lines, devices
        #: Whether any line counts one GPU model only.
        self.has_model_lines = any(snapshot.quotas.gpu_model)
        self._known: dict[tuple[int, int, int], LineCharges] = {}
        self._amounts: dict[tuple[int, int], dict[str, int]] = {}
        self._open: dict[tuple[int, int, int], tuple[OpenLine, ...]] = {}

    def certain(self, payer: int, class_index: int, tasks: int) -> LineCharges:
        """What a job counts whatever devices it is given."""
        key = (payer, class_index, tasks)
        known = self._known.get(key)
        if known is None:
            amounts = self._amounts.setdefault((class_index, tasks), {})
            known = self._known[key] = self._charges(payer, self._classes[class_index], tasks, amounts)
        return known

    def of_request(self, payer: int, request: RequestClass, tasks: int) -> LineCharges:
        """The same as `certain` for a request that need not be one of the snapshot."""
        return self._charges(payer, request, tasks, {})

    def open_lines(self, payer: int, class_index: int, tasks: int) -> tuple[OpenLine, ...]:
        """Lines for one GPU model that count the job only if it is given such devices."""
        if not self.has_model_lines:
            return ()
        key = (payer, class_index, tasks)
        if key not in self._open:
            request = self._classes[class_index]
            models = self._devices.models_of(request.gpu_model, request.gpu_memory_mib)
            amount = request.per_task.gpu_millis_charged * tasks
            found = []
            for line in self._lines_of[payer] if amount else ():
                wanted = self._quotas.gpu_model[line]
                covered = frozenset(model for model in models if wanted and model_matches(wanted, model))
                if covered and len(covered) < len(models):
                    found.append(OpenLine(line, amount, covered))
            self._open[key] = tuple(found)
        return self._open[key]

    def placed(
        self, payer: int, class_index: int, tasks: int, devices: Iterable[int], gpu_millis: int
    ) -> LineCharges:
        """What a job counts in all once it is given these devices (rows), `gpu_millis` of each."""
        certain, opened = (
            self.certain(payer, class_index, tasks),
            self.open_lines(payer, class_index, tasks),
        )
        if not opened:
            return certain
        held = Counter(self._devices.model_of(device) for device in devices)
        given = ((one.line, gpu_millis * sum(held[model] for model in one.models)) for one in opened)
        return (*certain, *((line, amount) for line, amount in given if amount))

    def _charges(self, payer: int, request: RequestClass, tasks: int, amounts: dict[str, int]) -> LineCharges:
        """`amounts` by resource are the same for every payer, and kept by the caller."""
        models, resources, found = self._quotas.gpu_model, self._quotas.resource, []
        for line in self._lines_of[payer]:
            if models[line] and not self._counts_all(models[line], request):
                continue
            amount = amounts.get(resources[line])
            if amount is None:
                amount = amounts[resources[line]] = charge(resources[line], request.per_task, tasks)
            if amount > 0:
                found.append((line, amount))
        return tuple(found)

    def _counts_all(self, model: str, request: RequestClass) -> bool:
        """Whether a line for this model counts all devices that the request could be given."""
        models = self._devices.models_of(request.gpu_model, request.gpu_memory_mib)
        return bool(models) and all(model_matches(model, have) for have in models)
