"""Free ports on this machine."""

from __future__ import annotations

import errno
import socket


class PortInUseError(Exception):
    """Somebody else listens there."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"Port {port} on {host} is in use.")
        self.port = port


def listen(host: str, port: int, *, backlog: int = 2048) -> socket.socket:
    """A listening socket; it stays ours while web processes come and go behind it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise PortInUseError(host, port) from error
        raise
    return sock


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    try:
        listen(host, port).close()
    except PortInUseError:
        return False
    return True


def free_port(wanted: int | None = None) -> int:
    """The wanted port on the loopback address if it is free, else any free one."""
    if wanted and is_free(wanted):
        return wanted
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
