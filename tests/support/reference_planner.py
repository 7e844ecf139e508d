"""The obvious planner: one job, node and device at a time, with plain dicts. Slow, and easy to believe."""

from __future__ import annotations

from typing import Any

from quotas.core.gpu_models import model_matches, share_of, suits
from quotas.core.limits import charge
from scheduler.core.plan import Plan, Start
from scheduler.core.policy import Policy
from scheduler.core.snapshot.constraints import HARD_EFFECTS, OWN_ARRAY
from scheduler.core.snapshot.snapshot import MUST, PACKS, JobGate, Snapshot


class Rows:
    """The rows of a table as dicts by key."""

    def __init__(self, table: Any, key: str = "id") -> None:
        self.by_id: dict[int, dict[str, Any]] = {}
        names = list(table.__dataclass_fields__)
        for row in range(len(table)):
            values = {name: getattr(table, name)[row] for name in names}
            self.by_id[int(values[key])] = values


class State:
    """What is free, in dicts. `hold` gives a start what it says; it asserts that all of it is there."""

    def __init__(self, snapshot: Snapshot, *, alone: bool = False) -> None:
        self.snapshot = snapshot
        self.alone = alone  # other jobs' places do not matter
        self.nodes = Rows(snapshot.nodes).by_id
        self.devices = Rows(snapshot.devices).by_id
        self.jobs = Rows(snapshot.pending).by_id
        self.queues = Rows(snapshot.queues).by_id
        self.projects = Rows(snapshot.projects).by_id
        self.lines = Rows(snapshot.quotas).by_id
        self.pools = {pool["name"]: pool for pool in Rows(snapshot.pools).by_id.values()}
        self.reservations = list(Rows(snapshot.reservations).by_id.values())
        #: (reservation id, node id, CPU, memory, end) of every task that runs or has started.
        self.tasks: list[tuple[int, int, int, int, int]] = []
        self.arrays: dict[int, int] = {}
        #: What bound tasks have left of each NUMA domain, and what it is itself, by node and number.
        self.domains = {
            (number, domain): [cpu, memory]
            for number, node in self.nodes.items()
            for domain, cpu, memory in self._domains_of(node)
        }
        self.domain_sizes = {place: tuple(left) for place, left in self.domains.items()}
        for (number, _), left in self.domains.items():  # what may be given away of each
            for at, name in enumerate(("cpu_millis", "memory_mib")):
                size = self.nodes[number][f"size_{name}"] or self.nodes[number][name]
                left[at] = left[at] * self.nodes[number][name] // size if size else 0
        for number, node in self.nodes.items():
            for domain, cpu, memory in node["bound"]:
                self._bind(number, domain, cpu, memory)
        running = Rows(snapshot.running).by_id
        #: (job, node) of every task that runs.
        self.placed = [
            (running[int(held["job_id"])], self.nodes[int(held["node_id"])])
            for held in Rows(snapshot.allocations).by_id.values()
        ]
        for held in Rows(snapshot.allocations).by_id.values():
            job = running[int(held["job_id"])]
            end = int(job["expected_end_ms"]) or 1 << 62
            self.tasks.append(
                (int(job["reservation_id"]), int(held["node_id"]), int(held["cpu_millis"]),
                 int(held["memory_mib"]), max(end, snapshot.now_ms + 1))
            )  # fmt: skip
        for job in running.values():
            if job["array_id"]:
                self.arrays[int(job["array_id"])] = self.arrays.get(int(job["array_id"]), 0) + 1

    def _domains_of(self, node: dict[str, Any]) -> list[tuple[int, int, int]]:
        if node["domains"]:
            return list(node["domains"])
        met = {int(one["numa"]) for one in self.devices.values() if one["node_id"] == node["id"]} or {0}
        return [(met.pop(), node["cpu_millis"], node["memory_mib"])] if len(met) == 1 else [(-1, 0, 0)]

    def _bind(self, node_id: int, domain: int, cpu: int, memory: int) -> None:
        left = self.domains[node_id, domain]
        left[0] -= cpu
        left[1] -= memory

    def domains_for(self, node: dict[str, Any], request: Any) -> list[int]:
        """NUMA domains of a node with CPUs and memory for one task that is bound."""
        need = request.per_task.cpu_millis, request.per_task.memory_mib
        return [
            domain
            for (number, domain), left in self.domains.items()
            if number == node["id"]
            and all(
                not one or one <= min(left[at], self.domain_sizes[number, domain][at])
                for at, one in enumerate(need)
            )
        ]

    def request(self, job: dict[str, Any]) -> Any:
        return self.snapshot.classes[int(job["class_index"])]

    def is_open(self, job: dict[str, Any]) -> bool:
        """Whether the job's own row, its queue and its limits let it be looked at."""
        queue, now = self.queues[int(job["queue_id"])], self.snapshot.now_ms
        bound = queue["max_wall_seconds"]
        if job["reservation_id"] and not self.may_run_inside(job):
            return False
        return bool(
            job["gate"] in {JobGate.OPEN, JobGate.BACKOFF}
            and job["eligible_ms"] <= now
            and not queue["paused"]
            and not (bound and job["time_limit_seconds"] > bound)
        )

    def end(self, job: dict[str, Any]) -> int:
        queue = self.queues[int(job["queue_id"])]
        limit = int(job["time_limit_seconds"]) or int(queue["max_wall_seconds"])
        return self.snapshot.now_ms + limit * 1000 if limit else 1 << 62

    def named(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The reservation that the job names."""
        return next((one for one in self.reservations if one["id"] == job["reservation_id"] > 0), None)

    def may_run_inside(self, job: dict[str, Any]) -> bool:
        """Whether the reservation that the job names is there, is for it, and holds it from now to its end."""
        booked = self.named(job)
        return bool(
            booked is not None
            and booked["starts_ms"] <= self.snapshot.now_ms
            and self.end(job) <= booked["ends_ms"]
            and (job["project_id"] in booked["project_ids"] or job["user_id"] in booked["user_ids"])
        )

    def bars(self, booked: dict[str, Any], job: dict[str, Any]) -> bool:
        """Whether the job would run in the window of a reservation that is not its own."""
        mine = booked["magnetic"] and (
            job["project_id"] in booked["project_ids"] or job["user_id"] in booked["user_ids"]
        )
        overlaps = self.snapshot.now_ms < booked["ends_ms"] and self.end(job) > booked["starts_ms"]
        return bool(
            overlaps and not mine and not job["reservation_id"] and job["id"] not in booked["job_ids"]
        )

    def leaves_parts(self, node: dict[str, Any], job: dict[str, Any]) -> bool:
        """Whether what is in use on a node leaves every reserved part of it free, at each moment that counts.

        The tasks of the job itself are among `tasks` already. Inside, its reservation holds what they use.
        """
        inside = self.named(job)
        for name, at in (("cpu_millis", 2), ("memory_mib", 3)):
            column = {"cpu_millis": 1, "memory_mib": 2}[name]
            if not getattr(self.request(job).per_task, name):
                continue
            if inside is not None:
                whole = node["id"] in inside["node_ids"]
                own = sum(part[column] for part in inside["parts"] if part[0] == node["id"])
                used = sum(
                    task[at] for task in self.tasks if task[:2] == (int(inside["id"]), int(node["id"]))
                )
                if not whole and used > own:
                    return False
                continue
            barring = [one for one in self.reservations if one["parts"] and self.bars(one, job)]
            for moment in {max(int(one["starts_ms"]), self.snapshot.now_ms) for one in barring}:
                back = sum(task[at] for task in self.tasks if task[1] == node["id"] and task[4] <= moment)
                kept = 0
                for booked in barring:
                    if booked["starts_ms"] <= moment < booked["ends_ms"]:
                        own = sum(part[column] for part in booked["parts"] if part[0] == node["id"])
                        used = sum(
                            task[at]
                            for task in self.tasks
                            if task[:2] == (int(booked["id"]), int(node["id"])) and task[4] > moment
                        )
                        kept += max(own - used, 0)
                if node[f"used_{name}"] - back + kept > node[name]:
                    return False
        return True

    def is_device_open(self, number: int, job: dict[str, Any]) -> bool:
        """Whether no reservation keeps the device from the job."""
        inside = self.named(job)
        node_id = self.devices[number]["node_id"]
        if inside is not None and node_id not in inside["node_ids"]:
            return any(number in part[3] for part in inside["parts"])
        return not any(
            number in part[3] for one in self.reservations if self.bars(one, job) for part in one["parts"]
        )

    def has_limits_left(self, job: dict[str, Any], tasks: int = 0) -> bool:
        request, tasks = self.request(job), tasks or int(job["tasks"])
        queue = self.queues[int(job["queue_id"])]
        if queue["max_concurrent_jobs"] and queue["running_jobs"] >= queue["max_concurrent_jobs"]:
            return False
        if self.array_is_full(job):
            return False
        for line in self.maybe(job):
            # A model that is open to it stays open however many tasks it becomes.
            whole = request.per_task.gpu_millis_charged
            if self.has_room_on({line["id"]: whole * int(job["tasks"])}) and not self.has_room_on(
                {line["id"]: whole * tasks}
            ):
                return False
        return self.has_room_on(self.charges(job, tasks)) and all(
            name in self.pools and self.pools[name]["used"] + amount * tasks <= self.pools[name]["capacity"]
            for name, amount in request.per_task.extras
        )

    # ------------------------------------------------------------------ quota lines

    def lines_of(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """The lines that count the job: of its project, those above, its person's; for its type."""
        lines = [self.lines[number] for number in self.projects[int(job["project_id"])]["quota_line_ids"]]
        return [
            line
            for line in lines
            if line["user_id"] in (0, job["user_id"]) and line["job_type"] in (0, job["job_type"])
        ]

    def models_for(self, request: Any) -> set[str]:
        """The models of devices that the request could be given."""
        return {
            device["model"]
            for device in self.devices.values()
            if suits(request.gpu_model, device["model"]) and device["memory_mib"] >= request.gpu_memory_mib
        }

    def maybe(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Lines of single models that count it only if it is given such devices, and not others."""
        request = self.request(job)
        models = self.models_for(request) if request.per_task.gpus else set()
        return [
            line
            for line in self.lines_of(job)
            if line["gpu_model"]
            and 0 < sum(model_matches(line["gpu_model"], m) for m in models) < len(models)
        ]

    def charges(self, job: dict[str, Any], tasks: int, held: dict[str, int] | None = None) -> dict[int, int]:
        """What it counts on each line; before its devices (`held`) are known, what it counts in any case."""
        request = self.request(job)
        if held is None:
            models = self.models_for(request) if request.per_task.gpus else set()
            held = dict.fromkeys(models, 0)
            if models:  # lines that count some of them only are left out, so it does not matter which
                held[min(models)] = request.per_task.gpu_millis_charged * tasks
            unsure = {line["id"] for line in self.maybe(job)}
            return {
                line["id"]: charge(
                    line["resource"], request.per_task, tasks, gpu_model=line["gpu_model"], devices=held
                )
                for line in self.lines_of(job)
                if line["id"] not in unsure
            }
        return {
            line["id"]: charge(
                line["resource"], request.per_task, tasks, gpu_model=line["gpu_model"], devices=held
            )
            for line in self.lines_of(job)
        }

    def bound_of(self, line: dict[str, Any]) -> float:
        bounds = [float("inf")]
        if not line["enforce"]:
            return bounds[0]
        if line["hard"] >= 0:
            bounds.append(line["hard"])
        if line["nominal"] >= 0 and line["borrowing_limit"] >= 0:
            bounds.append(line["nominal"] + line["borrowing_limit"])
        elif line["nominal"] >= 0 and line["is_pool"] and not line["parent_id"]:
            bounds.append(line["nominal"])
        return min(bounds)

    def inside(self, line: dict[str, Any], more: dict[int, int]) -> int:
        """In use on a line, and what lines below keep back of it beyond what they use; with `more` in use."""
        found = line["used"] + more.get(line["id"], 0)
        for other in self.lines.values():
            if other["parent_id"] == line["id"]:
                used = other["used"] + more.get(other["id"], 0)
                found += max(self.inside(other, more), self.kept_back(other)) - used
        return int(found)

    def kept_back(self, line: dict[str, Any]) -> int:
        keeps = line["enforce"] and line["nominal"] >= 0 and line["lending_limit"] >= 0
        return max(int(line["nominal"] - line["lending_limit"]), 0) if keeps else 0

    def has_room_on(self, charges: dict[int, int]) -> bool:
        """Whether so much more may be in use on these lines, with what others may always have."""
        for number, amount in charges.items():
            line = self.lines[number]
            if not amount:
                continue
            if line["used"] + amount > self.bound_of(line):
                return False
            after = self.inside(line, charges)
            if after > self.inside(line, {}) and after > self.bound_of(line):
                return False
        return True

    def never_by_quota(self, job: dict[str, Any]) -> bool:
        """Whether it is larger than a line allows in all, whatever devices it is given."""
        tasks = int(job["tasks"])
        sure = self.charges(job, tasks).items()
        if any(need > max(self.bound_of(self.lines[number]), 0) for number, need in sure):
            return True
        need = self.request(job).per_task.gpu_millis_charged * tasks
        models = self.models_for(self.request(job))
        maybe = [line for line in self.maybe(job) if need > self.bound_of(line)]
        return bool(models) and all(
            any(model_matches(line["gpu_model"], model) for line in maybe) for model in models
        )

    def closed_to(self, job: dict[str, Any]) -> set[str]:
        """Models whose lines have no room for all of it: it is given none of those."""
        amount = self.request(job).per_task.gpu_millis_charged * int(job["tasks"])
        return {
            model
            for line in self.maybe(job)
            if not self.has_room_on({line["id"]: amount})
            for model in self.models_for(self.request(job))
            if model_matches(line["gpu_model"], model)
        }

    def array_is_full(self, job: dict[str, Any]) -> bool:
        bound, array = job["array_max_running"], int(job["array_id"])
        return bool(array and bound and self.arrays.get(array, 0) >= bound)

    def welcomes(self, node: dict[str, Any], job: dict[str, Any]) -> bool:
        """Whether the node takes tasks of this job at all."""
        request = self.request(job)
        queue = self.queues[int(job["queue_id"])]
        limit = int(job["time_limit_seconds"]) or int(queue["max_wall_seconds"])
        for booked in self.reservations:
            if node["id"] in booked["node_ids"] and self.bars(booked, job):
                return False
        inside = self.named(job)
        if inside is not None and not self.may_run_inside(job):
            return False
        if inside is not None and node["id"] not in {*inside["node_ids"], *(p[0] for p in inside["parts"])}:
            return False
        labels = dict(node["labels"])
        if any(
            0 < node[f"size_{name}"] < getattr(request.per_task, name)
            for name in ("cpu_millis", "memory_mib")
        ):
            return False
        return (
            node["state"] == "up"
            and not node["faulty"]
            and not node["cordoned"]
            and not node["draining"]
            and not (node["max_wall_seconds"] and (not limit or limit > node["max_wall_seconds"]))
            and all(
                not wanted or set(wanted) & set(node["partition_ids"])
                for wanted in (request.partition_ids, queue["partition_ids"])
            )
            and node["isolation"] & queue["isolation"] == queue["isolation"]
            and node["features"] & request.features == request.features
            and all(labels.get(key) == value for key, value in request.node_selector)
            and all(
                taint.effect not in HARD_EFFECTS or any(t.tolerates(taint) for t in request.tolerations)
                for taint in node["taints"]
            )
            and (
                not request.required_affinity
                or any(all(r.holds_for(labels) for r in term) for term in request.required_affinity)
            )
        )

    def domain(self, node: dict[str, Any], topology: str) -> Any:
        """Where a node is, or None when nobody says."""
        if topology == "backend":
            return "all"
        return node["id"] if topology == "node" else node[topology] or None

    def is_about(self, term: Any, owner: dict[str, Any], job: dict[str, Any]) -> bool:
        """Whether the term of one job is about another."""
        like = term.jobs
        array = int(owner["array_id"]) or -99 if like.array_id == OWN_ARRAY else like.array_id
        return bool(
            owner["project_id"] == job["project_id"]
            and set(like.labels) <= set(job["labels"])
            and like.name in ("", job["name"])
            and array in (0, int(job["array_id"]))
        )

    def company_allows(self, node: dict[str, Any], job: dict[str, Any]) -> bool:
        """Whether the job may be on this node beside those that run."""
        if self.alone:
            return True

        def here(other: dict[str, Any], topology: str) -> bool:
            place = self.domain(node, topology)
            return place is not None and place == self.domain(other, topology)

        for term in self.request(job).job_terms:
            there = [place for other, place in self.placed if self.is_about(term, job, other)]
            met = any(here(place, term.topology) for place in there)
            if term.weight:
                continue
            if term.apart and met:
                return False
            first = (
                not there and self.is_about(term, job, job) and self.domain(node, term.topology) is not None
            )
            if not term.apart and not met and not first:
                return False
        return not any(
            term.apart and not term.weight and self.is_about(term, other, job) and here(place, term.topology)
            for other, place in self.placed
            for term in self.request(other).job_terms
        )

    def waits_for_company(self, job: dict[str, Any]) -> bool:
        """Whether somebody behind it may be who it waits for: it never stops a strict queue."""
        return any(not term.apart and not term.weight for term in self.request(job).job_terms)

    def devices_for(
        self,
        node: dict[str, Any],
        request: Any,
        closed: set[str] | frozenset[str] = frozenset(),
        domain: int | None = None,
        job: dict[str, Any] | None = None,
    ) -> list[int] | None:
        """Some devices for one task on this node, none of a closed model; None when there are not enough.

        With `domain` of that NUMA domain only.
        """
        wanted = request.per_task.gpus
        share = request.per_task.gpu_millis if request.shares_gpu else 1000
        fitting = [
            number
            for number, device in self.devices.items()
            if device["node_id"] == node["id"]
            and device["healthy"]
            and (job is None or self.is_device_open(number, job))
            and domain in (None, device["numa"])
            and device["model"] not in closed
            and suits(request.gpu_model, device["model"])
            and device["memory_mib"] >= request.gpu_memory_mib
            and device["used_millis"] + share <= 1000
            and not (request.gpu_slice and device["used_millis"])
        ]
        # Shares go to the fullest device: any other could waste room that a later share of a gang needs.
        fitting.sort(key=lambda number: -self.devices[number]["used_millis"])
        return fitting[:wanted] if len(fitting) >= wanted else None

    def slots(self, node: dict[str, Any], job: dict[str, Any], tasks: int) -> int:
        """How many tasks of the job the node takes at once, found by handing them out one by one."""
        if not self.welcomes(node, job) or not self.company_allows(node, job):
            return 0
        request, taken = self.request(job), []
        count, closed = 0, self.closed_to(job)
        while count < tasks:
            found = [
                (devices, domain)
                for domain in (self.domains_for(node, request) if request.one_domain else [None])
                if (devices := self.devices_for(node, request, closed, domain, job)) is not None
            ]
            if not found or not self._has_room(node, request):
                break
            self._move(node, *found[0][:1], request, 1, found[0][1])
            taken.append(found[0])
            self._begin(node, job)
            if not self.leaves_parts(node, job):
                break
            count += 1
        for devices, domain in taken:
            self._move(node, devices, request, -1, domain)
            self.tasks.pop()
        return count

    def can_place(self, job: dict[str, Any], tasks: int = 0) -> bool:
        """Whether so many tasks, or as many as are enough, find a place near enough to each other."""
        tasks = tasks or int(job["tasks"])
        level = PACKS[int(job["pack"]) % MUST] if job["pack"] >= MUST else ""
        if not level:
            return self._splits(job, list(self.nodes.values()), tasks)
        near = [[node] for node in self.nodes.values()]  # one node is in one rack, whatever it is called
        if level != "node":
            names = {node[level] for node in self.nodes.values()} - {""}
            near += [[node for node in self.nodes.values() if node[level] == name] for name in sorted(names)]
        return any(self._splits(job, nodes, tasks) for nodes in near)

    def _splits(self, job: dict[str, Any], on: list[dict[str, Any]], tasks: int) -> bool:
        """Whether these nodes hold so many tasks at once, by trying every allowed split."""
        term = self.request(job).task_term
        if term is not None and not term.soft and tasks > 1:
            return self._can_spread(job, term, on, tasks)
        slots = sorted((self.slots(node, job, tasks) for node in on), reverse=True)
        nodes, each = int(job["nodes"]), int(job["tasks_per_node"])

        def splits(left: int, place: int, used: int) -> bool:
            if left == 0:
                return not nodes or used == nodes
            if place == len(slots):
                return False
            counts = range(min(slots[place], left), -1, -1)
            if each:
                counts = [c for c in counts if c in (0, each) or (c == left and c < each)]  # type: ignore[assignment]
            return any(splits(left - c, place + 1, used + (c > 0)) for c in counts)

        return splits(tasks, 0, 0)

    def _can_spread(self, job: dict[str, Any], term: Any, on: list[dict[str, Any]], tasks: int) -> bool:
        """Every number of tasks in every domain is tried."""
        room: dict[Any, int] = {}
        for node in on:
            place = self.domain(node, term.topology)
            if place is not None:
                room[place] = room.get(place, 0) + self.slots(node, job, tasks)
        most = [min(count, term.per_domain or count) for count in room.values()]

        def splits(left: int, place: int, used: int) -> bool:
            if left == 0:
                return bool(term.least <= used <= (term.most or used))
            if place == len(most):
                return False
            return any(splits(left - c, place + 1, used + (c > 0)) for c in range(min(most[place], left) + 1))

        return splits(tasks, 0, 0)

    def hold(self, start: Start, *, largest: bool = True) -> None:
        """Give a start what it says, one task at a time, asserting that every piece is there and allowed.

        One that may be of several sizes must be the largest that fits, unless it has to leave room for others.
        """
        job = self.jobs.pop(start.job_id)
        request = self.request(job)
        assert self.is_open(job)
        assert self.has_limits_left(job), "a limit is passed"
        assert start.per_task == request.per_task
        tasks = len(start.placements)
        assert [placement.rank for placement in start.placements] == list(range(tasks))
        assert int(job["tasks"]) <= tasks <= max(int(job["tasks"]), int(job["most_tasks"])), "not whole"
        for more in range(tasks + 1, int(job["most_tasks"]) + 1) if largest else ():
            assert not (self.has_limits_left(job, more) and self.can_place(job, more)), "more would fit"
        share = request.per_task.gpu_millis or 1000
        held: dict[str, int] = {}
        for number in (number for placement in start.placements for number in placement.device_ids):
            held[self.devices[number]["model"]] = held.get(self.devices[number]["model"], 0) + share
        assert self.has_room_on(self.charges(job, tasks, held)), "a limit is passed"
        counts: dict[int, int] = {}
        for placement in start.placements:
            node = self.nodes[placement.node_id]
            counts[placement.node_id] = counts.get(placement.node_id, 0) + 1
            assert self.welcomes(node, job), "the node does not take it"
            assert self.company_allows(node, job), "other jobs keep it away"
            assert self._has_room(node, request), "the node is overcommitted"
            assert len(set(placement.device_ids)) == len(placement.device_ids) == request.per_task.gpus
            domain = placement.numa if request.one_domain else None
            if domain is not None:
                assert domain in self.domains_for(node, request), "a NUMA domain is overcommitted"
                assert {self.devices[one]["numa"] for one in placement.device_ids} <= {domain}, "it crosses"
            assert placement.gpu_millis == (share if request.per_task.gpus else 0)
            for number in placement.device_ids:
                device = self.devices[number]
                assert device["node_id"] == placement.node_id
                assert device["healthy"]
                assert device["used_millis"] + share <= 1000, "a device is overcommitted"
                assert not (request.gpu_slice and device["used_millis"]), "a slice is given twice"
                assert suits(request.gpu_model, device["model"])
                assert self.is_device_open(number, job), "a reserved device is given away"
            self._move(node, list(placement.device_ids), request, 1, domain)
            self._begin(node, job)
            assert self.leaves_parts(node, job), "a reserved part is given away"
        assert not job["nodes"] or len(counts) == job["nodes"]
        if job["pack"] >= MUST and len(counts) > 1:
            level = PACKS[int(job["pack"]) % MUST]
            assert level != "node"
            assert len({self.nodes[node][level] for node in counts} | {""}) == 2, "too far apart"
        if job["tasks_per_node"]:
            full, rest = divmod(tasks, int(job["tasks_per_node"]))
            assert sorted(counts.values()) == sorted(
                [int(job["tasks_per_node"])] * full + [rest] * (rest > 0)
            )
        term = request.task_term
        if term is not None and not term.soft and len(start.placements) > 1:
            places = [self.domain(self.nodes[one.node_id], term.topology) for one in start.placements]
            assert None not in places
            assert term.least <= len(set(places)) <= (term.most or len(places)), "the spread is not kept"
            assert not term.per_domain or max(map(places.count, places)) <= term.per_domain
        self.placed += [(job, self.nodes[placement.node_id]) for placement in start.placements]
        self._count(job, request, tasks, held)

    def _begin(self, node: dict[str, Any], job: dict[str, Any]) -> None:
        per_task = self.request(job).per_task
        self.tasks.append(
            (int(job["reservation_id"]), int(node["id"]), per_task.cpu_millis, per_task.memory_mib,
             self.end(job))
        )  # fmt: skip

    def _count(self, job: dict[str, Any], request: Any, tasks: int, held: dict[str, int]) -> None:
        self.queues[int(job["queue_id"])]["running_jobs"] += 1
        if job["array_id"]:
            self.arrays[int(job["array_id"])] = self.arrays.get(int(job["array_id"]), 0) + 1
        for number, amount in self.charges(job, tasks, held).items():
            self.lines[number]["used"] += amount
        for name, amount in request.per_task.extras:
            self.pools[name]["used"] += amount * tasks

    def _has_room(self, node: dict[str, Any], request: Any) -> bool:
        return all(
            node[f"used_{name}"] + getattr(request.per_task, name) <= node[name]
            or not getattr(request.per_task, name)
            for name in ("cpu_millis", "memory_mib", "storage_mib")
        )

    def _move(
        self, node: dict[str, Any], devices: list[int], request: Any, sign: int, domain: int | None = None
    ) -> None:
        if domain is not None:
            per_task = request.per_task
            self._bind(node["id"], domain, sign * per_task.cpu_millis, sign * per_task.memory_mib)
        for name in ("cpu_millis", "memory_mib", "storage_mib"):
            node[f"used_{name}"] += sign * getattr(request.per_task, name)
        share = request.per_task.gpu_millis or 1000
        for number in devices:
            self.devices[number]["used_millis"] += sign * share


def check(snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
    """Go through the jobs in order and assert of each that the plan did the right thing with it.

    A start holds only what is there, and a job that does not start could not have: this is a whole second
    planner, but for the choice among nodes that would all do, which it follows instead of making.
    """
    state = State(snapshot)
    starts = {start.job_id: start for start in plan.starts}
    assert len(starts) == len(plan.starts)
    assert set(starts) | set(plan.reasons) == set(state.jobs), "a job without an outcome"
    assert not set(starts) & set(plan.reasons), "a job with two outcomes"
    stopped: set[int] = set()
    seen: list[int] = []
    for job in line_up(state, policy):
        number, queue = int(job["id"]), int(job["queue_id"])
        if not state.is_open(job):
            assert number not in starts, "a job that must not be looked at starts"
            continue
        fits = state.has_limits_left(job) and state.can_place(job)
        if number in starts:
            assert queue not in stopped, "a strict order is broken"
            state.hold(starts[number])
            seen.append(number)
        elif queue not in stopped:
            assert not fits, "a job that would fit waits"
            too_large = plan.reasons[number].value in {"ExceedsMaxQuota", "QuotaZero"}
            if policy.of_queue(queue).strict_order and ((too_large and not state.never_by_quota(job))
            or plan.reasons[number].value in {
                "WaitingForResources", "WaitingForQuota", "Reservation", "TopologyFragmented", "RateLimited",
                "AgentUnreachable", "Priority", "JobAffinity",
            }) and not state.array_is_full(job) and not state.waits_for_company(job):  # fmt: skip
                stopped.add(queue)
    assert seen == [start.job_id for start in plan.starts], "starts are not in order"


def line_up(state: State, policy: Policy) -> list[dict[str, Any]]:
    """The jobs in the cluster's order, where those of a queue with its own policy then change places."""
    jobs = list(state.jobs.values())
    line = sorted(jobs, key=lambda job: order_key(state, job, policy))
    for queue_id, own in policy.queues:
        mine = sorted(
            (job for job in jobs if job["queue_id"] == queue_id),
            key=lambda job: order_key(state, job, own, queue_id),
        )
        line = [mine.pop(0) if job["queue_id"] == queue_id else job for job in line]
    return line


def order_key(state: State, job: dict[str, Any], policy: Policy, queue_id: int = 0) -> tuple[float, ...]:
    """The place of a job under the cluster's policy, or under that of this queue for the jobs of the queue."""
    queue = state.queues[int(job["queue_id"])]
    project = state.projects[int(job["project_id"])]
    limit = int(job["time_limit_seconds"]) or int(queue["max_wall_seconds"])
    submitted = int(job["submitted_ms"])
    keys: tuple[float, ...]
    if policy.name == "priority" and policy.factors:
        keys = (-sum(weight * _factor(state, job, policy, name) for name, weight in policy.factors),
                max(submitted, int(job["eligible_ms"])))  # fmt: skip
    else:
        keys = {
            "fifo": (submitted,),
            "priority": (
                -_band(int(job["priority"])) if policy.priority_by == "band" else -int(job["priority"]),
                max(submitted, int(job["eligible_ms"])),
            ),
            "fairshare": (-_share(project), submitted),
            "sjf": (limit or 1 << 63, submitted),
            "edf": (int(job["deadline_ms"]) or 1 << 63, submitted),
            "fair_queue": (*_turn(state, job, policy, queue_id), submitted),
        }[policy.name]
    if not any(name == "queue" for name, _ in policy.factors):
        keys = (-int(queue["priority"]), *keys)
    ties = tuple(
        -int(job[name.removeprefix("-")]) if name.startswith("-") else int(job[name])
        for name in policy.tie_breakers
    )
    return (*keys, *ties, int(job["id"]))


def _share(project: dict[str, Any]) -> float:
    return float(project["share_weight"]) / (float(project["used_gpu_seconds"]) / 3600 + 1.0)


def _cost(state: State, job: dict[str, Any]) -> int:
    return max(int(state.request(job).per_task.gpu_millis_charged) * int(job["tasks"]), 1)


def _factor(state: State, job: dict[str, Any], policy: Policy, name: str) -> int:
    """0 to a million, by whole steps."""
    if name == "priority":
        return int(job["priority"]) * 10_000
    if name == "queue":
        return int(state.queues[int(job["queue_id"])]["priority"]) * 10_000
    if name == "age":
        waited = state.snapshot.now_ms - max(int(job["submitted_ms"]), int(job["eligible_ms"]))
        cap = policy.age_cap_seconds * 1000
        return min(max(waited, 0), cap) * 1_000_000 // cap
    if name == "size":
        return (
            _cost(state, job)
            * 1_000_000
            // max(sum(share_of(one["model"]) for one in state.devices.values()), 1)
        )
    best = max(_share(project) for project in state.projects.values())
    return int(_share(state.projects[int(job["project_id"])]) / best * 1_000_000)


def _band(priority: int) -> int:
    return (priority > 33) + (priority > 66)


def _turn(state: State, job: dict[str, Any], policy: Policy, queue_id: int) -> tuple[int, int]:
    """Where the job starts and ends in the virtual time of its tenant, of the cluster's or of a queue's own policy."""
    tenant = f"{policy.tenant}_id"
    rows = [
        row
        for row in Rows(state.snapshot.turns).by_id.values()
        if row["queue_id"] == queue_id and row["by_user"] == (policy.tenant == "user")
    ]
    clock = max((int(row["virtual"]) for row in rows if row["tenant_id"] == 0), default=0)
    mine = next((row for row in rows if row["tenant_id"] == job[tenant]), None)
    at = clock
    if mine is not None:
        at = max(int(mine["virtual"]), clock - 1_000_000 * 720_720 if mine["waiting"] else clock)
    for other in sorted(state.jobs.values(), key=lambda one: _place_of(state, one)):
        if other["id"] == job["id"]:
            break
        if queue_id and other["queue_id"] != queue_id:
            continue
        if other[tenant] == job[tenant] and state.is_open(other):
            at += _charge(state, other, policy)
    return at, at + _charge(state, job, policy)


def _place_of(state: State, job: dict[str, Any]) -> tuple[int, int, int]:
    return (
        -int(state.queues[int(job["queue_id"])]["priority"]), int(job["submitted_ms"]), int(job["id"])
    )  # fmt: skip


def _charge(state: State, job: dict[str, Any], policy: Policy) -> int:
    """The largest part that the job asks for of any one resource of the cluster, for its tenant's weight."""
    each, tasks = state.request(job).per_task, int(job["tasks"])
    parts = [
        (each.cpu_millis * tasks, sum(int(node["cpu_millis"]) for node in state.nodes.values())),
        (each.memory_mib * tasks, sum(int(node["memory_mib"]) for node in state.nodes.values())),
        (each.gpu_millis_charged * tasks, sum(share_of(one["model"]) for one in state.devices.values())),
    ]
    cost = min(max(1, *(asked * 1_000_000 // max(whole, 1) for asked, whole in parts)), 1_000_000)
    weight = int(state.projects[int(job["project_id"])]["share_weight"]) if policy.tenant == "project" else 1
    return max(cost * 720_720 // weight, 1)
