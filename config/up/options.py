"""The command line of `manage.py up`."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DESCRIPTION = "Run the whole portal on this machine: database, broker, web, workers, beat and local nodes."
DEFAULT_PORT = 8000
MAX_NODES = 64


@dataclass(frozen=True, slots=True)
class Options:
    host: str
    port: int | None  # None: 8000, or the next free one
    port_from: str  # who asked for the port, for the error message
    nodes: int
    demo: bool
    i_know: bool = False  # other machines may reach it although jobs share its account
    # What jobs here may read and write besides their own folders.
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


def add_to(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s); one that other machines reach needs --nodes 0 or --i-know",
    )
    parser.add_argument(
        "--i-know",
        action="store_true",
        help="let other machines in although jobs run here, on the machine of the portal's keys and database",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=None,
        help=f"port; an error if it is taken (default: PORT, else {DEFAULT_PORT} or the next free one)",
    )
    parser.add_argument(
        "--nodes",
        type=int,
        default=4,
        help=f"how many node agents to run here, 0 to {MAX_NODES} (default: 4)",
    )
    for what in ("readable", "writable"):
        parser.add_argument(
            f"--{what}",
            action="append",
            default=[],
            metavar="PATH",
            help=f"folder that jobs here can {'read' if what == 'readable' else 'write'} too; may be given again",
        )
    parser.add_argument("--no-demo", action="store_true", help="no demo people, projects and fake GPUs")


def parse(arguments: list[str]) -> Options:
    parser = ArgumentParser(prog="manage.py up", description=DESCRIPTION)
    add_to(parser)
    parsed = parser.parse_args(arguments)
    try:
        return from_mapping(vars(parsed))
    except ValueError as error:
        parser.error(str(error))


def from_mapping(given: Mapping[str, Any]) -> Options:
    port, port_from = given["port"], "--port"
    if port is None and (wanted := os.environ.get("PORT", "").strip()):
        if not wanted.isdigit():
            raise ValueError(f"PORT is {wanted!r}, which is not a port number")
        port, port_from = int(wanted), "PORT"
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"{port_from} is {port}; a port is a number from 1 to 65535")
    if not 0 <= given["nodes"] <= MAX_NODES:
        raise ValueError(f"--nodes is {given['nodes']}; choose 0 to {MAX_NODES}")
    for what in ("readable", "writable"):
        for path in given[what]:
            if not os.path.isabs(path) or not os.path.isdir(path):
                raise ValueError(f"--{what} is {path}, which is not the absolute path of a folder here")
    return Options(
        host=given["host"],
        port=port,
        port_from=port_from,
        nodes=given["nodes"],
        demo=not given["no_demo"],
        i_know=given["i_know"],
        readable=tuple(given["readable"]),
        writable=tuple(given["writable"]),
    )
