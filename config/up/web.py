"""The web process: uvicorn on a socket that the supervisor opened and keeps.

The socket outlives the process, so after a crash no connection is refused: connections wait for the next process.
"""

from __future__ import annotations

import os
import socket
import sys
from argparse import ArgumentParser
from pathlib import Path

import uvicorn

from config.up.memory import EXIT_CODE, ceiling_mib, watch_memory


class SayingServer(uvicorn.Server):
    """Leaves a file where the supervisor looks for it, once it accepts connections."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and (ready_file := os.environ.get("MUSTER_READY_FILE")):
            Path(ready_file).touch()  # noqa: ASYNC240  once, before anybody is served


def forget_the_dead() -> None:
    """Drop the gauges of ended processes; their counters stay."""
    for file in Path(os.environ.get("PROMETHEUS_MULTIPROC_DIR") or os.devnull).glob("gauge_live*_*.db"):
        if not Path(f"/proc/{file.stem.rpartition('_')[2]}").exists():
            file.unlink(missing_ok=True)


def server_config() -> uvicorn.Config:
    """How the web process serves; uvicorn leaves the peer address of a connection alone."""
    return uvicorn.Config(
        "config.asgi:application",
        lifespan="off",
        access_log=False,
        log_config=None,
        proxy_headers=False,  # who is a proxy is decided once, by infra.client_address
        server_header=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=30,
        ws_max_size=1024 * 1024,
    )


def main(arguments: list[str]) -> int:
    parser = ArgumentParser(prog="python -m config.up.web")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of a listening socket")
    options = parser.parse_args(arguments)
    forget_the_dead()
    listening = socket.socket(fileno=options.fd)
    listening.setblocking(False)
    server = SayingServer(server_config())
    full: list[str] = []

    def drain() -> None:
        server.should_exit = True

    def say(text: str) -> None:
        full.append(text)
        print(text, file=sys.stderr, flush=True)

    watch_memory(most_mib=ceiling_mib(), drain=drain, say=say)
    server.run(sockets=[listening])
    if full:  # threads of requests that still compute would delay an orderly exit
        os._exit(EXIT_CODE)
    return 0 if server.started else 3


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.development")
    sys.exit(main(sys.argv[1:]))
