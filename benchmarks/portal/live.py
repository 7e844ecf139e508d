"""The live socket: a thousand clients of one web process, which get a change every second."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import cycle, islice
from typing import Any

import websockets

from benchmarks.portal.scratch_portal import portal
from benchmarks.registry import Figures, benchmark

CLIENTS = 1000
#: Sockets are bounded for each person, so the clients belong to this many.
PEOPLE = 20
CHANGES = 20
#: A client counts when this share of the changes arrives within this time: two changes within one second are one
#: message.
LATE_SECONDS = 2.0
FED_SHARE = 0.75


@benchmark("live_clients", "live_lag_p50_s", "live_lag_p99_s")
def live() -> Figures:
    """From a change in the database to its arrival, coalescing included; clients that got enough of them in time."""
    running = portal()
    tokens = _people()
    node_id = _a_cluster()
    lags = asyncio.run(_measure(running.stack.base_url, tokens, node_id))
    every = sorted(lag for heard in lags for lag in heard)
    fed = sum(sum(lag <= LATE_SECONDS for lag in heard) >= FED_SHARE * CHANGES for heard in lags)
    yield "live_clients", fed
    yield "live_lag_p50_s", every[len(every) // 2] if every else float("inf")
    yield "live_lag_p99_s", every[len(every) * 99 // 100] if every else float("inf")


def _people() -> list[str]:
    from accounts.models import User
    from accounts.services.tokens import issue_token

    tokens = []
    for number in range(PEOPLE):
        person, _ = User.objects.get_or_create(username=f"live-{number}")
        tokens.append(issue_token(user=person, by=person, name="bench", scopes=["nodes:read"], days=1)[1])
    return tokens


def _a_cluster() -> int:
    """A hundred nodes of eight GPUs to look at; the one that will change."""
    from scheduler.models import Cluster, Device, Node

    cluster = Cluster.objects.order_by("id").first()
    assert cluster is not None
    made = Node.objects.bulk_create(
        [
            Node(
                cluster=cluster, name=f"shown-{number}", cordoned=True, cpu_millis=64_000, memory_mib=524_288,
                cpu_millis_capacity=64_000, memory_mib_capacity=524_288, gpu_millis=8000,
            )
            for number in range(100)
        ],
        ignore_conflicts=False,
    )  # fmt: skip
    Device.objects.bulk_create(
        [
            Device(node=node, index=index, model="H100", memory_mib=81_920)
            for node in made
            for index in range(8)
        ]
    )
    return made[0].pk


def _change(node_id: int) -> None:
    """The change carries its own moment, so that each client can compute how long it took."""
    from django.db import connection, transaction

    from scheduler import outbox
    from scheduler.models import Node

    with transaction.atomic():
        Node.objects.filter(pk=node_id).update(trouble=f"{time.time():.4f}")
        outbox.announce(outbox.CLUSTER_TOPIC)
    connection.close()


async def _measure(base_url: str, tokens: list[str], node_id: int) -> list[list[float]]:
    url = base_url.replace("http", "ws", 1).rstrip("/") + "/ws/live/"
    lags: list[list[float]] = [[] for _ in range(CLIENTS)]
    ready = asyncio.Semaphore(0)
    opening = asyncio.Semaphore(40)

    async def follow(heard: list[float], token: str) -> None:
        async with opening:
            socket = await websockets.connect(
                url,
                additional_headers={"Authorization": f"Bearer {token}"},
                compression=None,
                open_timeout=60,
            )
            await socket.send(json.dumps({"op": "subscribe", "topic": "cluster", "sub": 1}))
            await _next(socket, "snapshot")
        ready.release()
        while True:
            row = (await _next(socket, "patch"))["patch"]["changed"].get(f"node:{node_id}")
            if row is not None and row["trouble"]:
                heard.append(time.time() - float(row["trouble"]))

    clients = [
        asyncio.create_task(follow(heard, token))
        for heard, token in zip(lags, islice(cycle(tokens), CLIENTS), strict=True)
    ]
    try:
        for _ in range(CLIENTS):
            await asyncio.wait_for(ready.acquire(), 120)
        await asyncio.sleep(2)
        for _ in range(CHANGES):
            started = time.monotonic()
            await asyncio.to_thread(_change, node_id)
            await asyncio.sleep(max(0.0, 1.05 - (time.monotonic() - started)))
        await asyncio.sleep(LATE_SECONDS)
    finally:
        for client in clients:
            client.cancel()
        results = await asyncio.gather(*clients, return_exceptions=True)
    broken = [result for result in results if isinstance(result, Exception)]
    if broken:
        print(f"{len(broken)} clients broke, the first with: {broken[0]!r}")
    return lags


async def _next(socket: Any, op: str) -> dict[str, Any]:
    while True:
        message = json.loads(await socket.recv())
        if message["op"] == op:
            return message
