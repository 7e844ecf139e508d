"""A pytest plugin that starts PostgreSQL and Valkey before the settings are read, and throws them away after.

Servers named by DATABASE_URL and REDIS_URL are used instead; the database's role then needs CREATEDB.

An empty database gets its tables as it does at a first `make run`, which takes seconds, so a data folder with them is
kept in pytest's cache under a name made from what makes them, and each run starts from a copy of it. So may a portal
under test whose first start is not what the test is about. What all migrations make of an empty database takes a
minute: `made_by_each_migration` keeps that too, for the test that compares both.

Tests connect as a role that becomes the application's when it signs in: every product path a test takes runs with
the rights that `config.database.rights` lists. A test that plays the owner says `with as_owner():`.

With `-n 2` (pytest-xdist) every worker has servers of its own, so nothing that one test does to Redis or to
PostgreSQL reaches a test of another worker; the process that only hands out the tests starts none.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from config.up.servers import roles
from config.up.servers.embedded import EmbeddedServers
from config.up.servers.postgres import DATABASE, unprivileged_account
from config.up.state import StateFolder, write_private

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".pytest_cache" / "muster"
TEST_DATABASE = "test_muster"  # the name that Django gives to the test database of `muster`
PASSWORD = "only-for-tests"  # kept data knows its passwords
PASSWORD_FILES = ("postgres_password", "postgres_owner_password", "postgres_app_password")
TESTER = "muster_test"
#: What the process that only hands out tests gives its settings to read; its workers inherit it.
NOWHERE = {"DATABASE_URL": "postgres://nobody@127.0.0.1:1/nothing", "REDIS_URL": "redis://127.0.0.1:1/0"}
started_here = False


def start() -> None:
    """Start what the environment does not name, on a scratch folder."""
    global started_here
    scratch = Path(tempfile.mkdtemp(prefix="muster-test-"))
    scratch.chmod(0o755)  # root's PostgreSQL runs under another account, which must get in
    # No test, and no command that a test runs, may touch the state of a portal that somebody uses.
    os.environ["MUSTER_STATE"] = str(scratch)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    state = StateFolder.find()
    know_passwords(state.path)
    servers = EmbeddedServers(state, throw_away=True)
    started_here = servers.postgres is not None
    kept = kept_data()

    def stop() -> None:
        servers.stop()
        shutil.rmtree(scratch, ignore_errors=True)

    atexit.register(stop)
    with one_at_a_time():
        running = False
        if servers.postgres and kept.exists():
            unpack(kept, servers.postgres.home)
        elif started_here:
            servers.start()
            running = not migrate(servers)
            if not running:
                servers.stop()
                keep(kept, servers)
    if not running:
        servers.start()
    os.environ["DATABASE_URL"] = as_tester(servers) if started_here else servers.database_url
    os.environ["REDIS_URL"] = servers.redis_url


def know_passwords(state: Path) -> None:
    for name in PASSWORD_FILES:
        write_private(state / name, PASSWORD + "\n")


def as_tester(servers: EmbeddedServers) -> str:
    """A superuser who has put on the application's role: what that may not do is refused, and a test can put it off."""
    name, app = sql.Identifier(TESTER), sql.Identifier(roles.APPLICATION)
    url = roles.Passwords(servers.state).url(roles.SUPERUSER, like=servers.database_url)
    with psycopg.connect(url, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [TESTER]).fetchall():
            make = sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}")
            connection.execute(make.format(name, sql.Literal(PASSWORD)))
            connection.execute(sql.SQL("ALTER ROLE {} SET role = {}").format(name, app))
    return url.replace(f"//{roles.SUPERUSER}:", f"//{TESTER}:")


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """The first worker migrates and keeps; the others wait and copy."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fingerprint(*also: Path) -> str:
    """Changes whenever all migrations, or these files too, could make something else, or it is kept in another way."""
    files = [
        Path(__file__).resolve(),
        ROOT / "config/up/servers/roles.py",
        ROOT / "config/database/rights.py",
        ROOT / "infra/db/references.py",
        *sorted(ROOT.glob("*/migrations/*.py")),
        *also,
    ]
    content = b"\0".join(
        [(ROOT / "requirements.txt").read_bytes()]
        + [str(file.relative_to(ROOT)).encode() + file.read_bytes() for file in files]
    )
    return hashlib.sha256(content).hexdigest()[:20]


def kept_data() -> Path:
    return CACHE / f"{fingerprint(*sorted((ROOT / 'config/database').glob('schema.*')))}.tar"


def made_by_each_migration(version: int, make: Callable[[], str]) -> str:
    """The tables that all migrations make in a PostgreSQL of this version, as text; `make` says it if none is kept."""
    file = CACHE / f"{fingerprint()}-{version}.sql"
    if not file.exists():
        replace(file, ".sql", lambda temporary: temporary.write_text(make()))
    return file.read_text()


def give_migrated_data(state: Path) -> None:
    """Let a portal on this new state folder find a database with all tables and no rows, where one is kept."""
    with one_at_a_time():
        if (kept := kept_data()).exists():
            unpack(kept, state / "postgres")
            know_passwords(state)


def migrate(servers: EmbeddedServers) -> bool:
    """Migrate both databases; False leaves it, and the words for it, to the first test that needs it."""
    assert servers.postgres is not None
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate", "--skip-checks", "-v", "0"],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings.test",
            "DATABASE_URL": servers.database_url,
            roles.OWNER_URL: servers.owner_database_url,
            "REDIS_URL": servers.redis_url,
        },
        capture_output=True,
        check=False,
    )
    if done.returncode:
        sys.stderr.buffer.write(done.stderr)
        return False
    servers.postgres.create_database(TEST_DATABASE, like=DATABASE)
    return True


def keep(file: Path, servers: EmbeddedServers) -> None:
    def pack(temporary: Path) -> None:
        assert servers.postgres is not None
        with tarfile.open(temporary, "w") as archive:
            archive.add(servers.postgres.data, "data")

    replace(file, ".tar", pack)


def replace(file: Path, ending: str, write: Callable[[Path], object]) -> None:
    """Have this file written, whole or not at all, in place of those with this ending that were kept before."""
    for old in CACHE.glob(f"*{ending}"):
        old.unlink(missing_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    write(temporary)
    temporary.replace(file)


def unpack(file: Path, home: Path) -> None:
    """Put kept data here, with its modes; it belongs to the account that PostgreSQL will run under.

    So what an ordinary account kept serves root, whose PostgreSQL runs under another account, and the other way round.
    """
    account = unprivileged_account()
    home.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file) as archive:
        for member in archive.getmembers() if account else ():
            member.uid, member.gid, member.uname, member.gname = account.pw_uid, account.pw_gid, "", ""
        archive.extraction_filter = lambda member, path: member  # ours, with its modes
        archive.extractall(home)


def pytest_configure(config: pytest.Config) -> None:
    if started_here:
        config.option.reuse_db = True


def hands_out_tests_only() -> bool:
    """Whether this process leaves all tests to workers of pytest-xdist; settings are read before it says so."""
    arguments = [*sys.argv[1:], *os.environ.get("PYTEST_ADDOPTS", "").split()]
    asked = any(argument.startswith(("-n", "--numprocesses")) for argument in arguments)
    return asked and "PYTEST_XDIST_WORKER" not in os.environ


if hands_out_tests_only():
    for name, nowhere in NOWHERE.items():
        os.environ.setdefault(name, nowhere)
else:
    for name, nowhere in NOWHERE.items():
        if os.environ.get(name) == nowhere:
            del os.environ[name]
    start()
