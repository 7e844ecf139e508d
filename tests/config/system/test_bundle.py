"""The support bundle: everything that helps, and no secret of the site or of a job."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import Client

from accounts.models import AuditEvent
from accounts.services import audit
from accounts.services.tokens import issue_token
from config.settings.declared import SETTINGS
from config.system import facts
from config.system.bundle import TAIL_BYTES, make_bundle
from config.system.masking import MASK, Masker
from infra.errors import NotAllowed
from scheduler.services.cluster.nodes import issue_join_token, register_node
from scheduler.services.jobs.submit import submit_job
from tests.support.factories import Cast, ClusterFactory, QueueFactory, the_cast

pytestmark = pytest.mark.django_db

MACHINE = {
    "cpu_millis": 8000, "memory_mib": 1000, "storage_mib": 0, "numa_domains": 1, "boot_id": "b", "agent_version": "0",
    "labels": {}, "partitions": [], "devices": [],
}  # fmt: skip


@pytest.fixture
def cast() -> Cast:
    return the_cast()


def files_of(body: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(body), mode="r:gz") as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive
        }


@pytest.fixture
def secrets(settings: Any, cast: Cast, tmp_path: Path) -> dict[str, str]:
    """Every kind of secret that a site has, by what it is; each is also in a log, where none should be."""
    known: dict[str, str] = {}
    for number, setting in enumerate(one for one in SETTINGS.values() if one.secret):
        value = f"value-of-{number}-7f3a9c"
        known[setting.name] = value
        if setting.name in ("DATABASE_URL", "REDIS_URL", "MUSTER_OWNER_DATABASE_URL"):
            setattr(settings, setting.name, f"redis://role:{value}@127.0.0.1:1/0")
        elif setting.kind == "list":
            setattr(settings, setting.name, [value])
        else:
            setattr(settings, setting.name, value)
    settings.MUSTER_STORAGE_KEYS = ["ab" * 32]
    known["MUSTER_STORAGE_KEYS"] = "ab" * 32
    settings.MUSTER_JOIN_TOKEN = ""
    known.pop("MUSTER_JOIN_TOKEN")
    known["SECRET_KEY"] = settings.SECRET_KEY
    settings.MUSTER_STATE = str(tmp_path)
    for name in ("secret_key", "postgres_password", "valkey_password", "metrics_token", "audit_key"):
        known[f"file {name}"] = f"in-{name}-51bb"
        write(tmp_path / name, known[f"file {name}"])
    (tmp_path / "agents" / "alpha").mkdir(parents=True)
    known["agent's identity"] = "muster_agent_0123456789_kept-by-the-agent"
    write(
        tmp_path / "agents/alpha/identity.json", json.dumps({"name": "a", "key": known["agent's identity"]})
    )
    _, known["API token"] = issue_token(
        user=cast.owner, by=cast.owner, name="t", scopes=["jobs:read"], days=3
    )
    cluster = ClusterFactory()
    _, known["join token"] = issue_join_token(cluster=cluster, by=cast.operator)
    done = register_node(join_token=known["join token"], name="alpha", inventory=MACHINE)
    known["agent's key"] = done.agent_key
    return known


def write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)


def test_no_secret_of_the_site_is_in_it_though_a_log_has_them_all(
    cast: Cast, secrets: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    lines = [json.dumps({"event": "slip", "of": name, "it": value}) for name, value in secrets.items()]
    (tmp_path / "log/web.log").write_text("\n".join([*lines, "the last line"]))

    name, body = make_bundle(by=cast.admin)

    files = files_of(body)
    found = [(kind, path) for kind, value in secrets.items() for path, text in files.items() if value in text]
    assert found == []
    assert files["log/web.log"].count(MASK) == len(secrets)
    assert files["log/web.log"].endswith("the last line")
    assert name.endswith(".tar.gz")


def test_a_secret_is_known_however_a_log_writes_it(
    cast: Cast, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, of_a_library = 'pä"ss\\word/77', "wJalrXUtnFEMI/K7MDENG+bPxRfi"
    settings.MUSTER_STATE, settings.EMAIL_HOST_PASSWORD = str(tmp_path), secret
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", of_a_library)
    (tmp_path / "log").mkdir()
    lines = [
        secret, json.dumps({"event": secret}), json.dumps({"event": secret}, ensure_ascii=False),
        f"smtp://mail/?login={quote(secret, safe='')}", f"signed with {of_a_library}",
    ]  # fmt: skip
    (tmp_path / "log/beat.log").write_text("\n".join(lines))

    text = files_of(make_bundle(by=cast.admin)[1])["log/beat.log"]

    assert text.splitlines() == [
        MASK, f'{{"event": "{MASK}"}}', f'{{"event": "{MASK}"}}', f"smtp://mail/?login={MASK}",
        f"signed with {MASK}",
    ]  # fmt: skip


def test_a_part_that_cannot_be_read_says_so_and_the_others_are_there(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise OperationalError("connection refused, password hunter-2-of-the-site")

    monkeypatch.setattr(facts, "planning", away)
    monkeypatch.setenv("PGPASSWORD", "hunter-2-of-the-site")

    parts = files_of(make_bundle(by=cast.admin)[1])

    error = f"OperationalError: connection refused, password {MASK}"
    assert json.loads(parts["planning.json"]) == {"error": error}
    assert "scheduler_job" in parts["database.json"]


def test_without_the_database_the_command_still_writes_what_it_can(
    cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the database does not answer")

    for module, name in ((facts, "connection"), (audit, "record")):
        monkeypatch.setattr(module, name, SimpleNamespace(cursor=away) if name == "connection" else away)

    call_command("support_bundle", folder=tmp_path)

    (file,) = tmp_path.glob("muster-support-*.tar.gz")
    parts = files_of(file.read_bytes())
    assert "does not answer" in json.loads(parts["database.json"])["error"]
    assert json.loads(parts["settings.json"])["MUSTER_GRACE_SECONDS"]
    with pytest.raises(OperationalError):  # a person gets none that the trail does not have
        make_bundle(by=cast.admin)


def test_nothing_of_the_inside_of_a_job_is_in_it(cast: Cast) -> None:
    queue = QueueFactory()
    submit_job(
        by=cast.owner,
        payload={"command": "echo from-the-command-9d1", "env": {"PASS": "from-the-env-77aa"}, "name": "named-4411",
                 "project": cast.project.slug, "queue": queue.slug},
    )  # fmt: skip

    text = "".join(files_of(make_bundle(by=cast.admin)[1]).values())

    assert not [word for word in ("from-the-command-9d1", "from-the-env-77aa", "named-4411") if word in text]


def test_it_has_what_helps(cast: Cast, secrets: dict[str, str]) -> None:
    files = files_of(make_bundle(by=cast.admin)[1])
    parts = {path: json.loads(text) for path, text in files.items() if path.endswith(".json")}

    assert parts["versions.json"]["packages"]["django"]
    assert parts["settings.json"]["MUSTER_SECRET_KEY"] == "set"
    assert parts["settings.json"]["MUSTER_GRACE_SECONDS"]
    assert {check["name"] for check in parts["health.json"]["checks"]} >= {
        "database",
        "planner",
        "outside",
        "redis",
    }
    assert parts["migrations.json"]["missing"] == []
    assert "scheduler_job" in {row["relname"] for row in parts["database.json"]["tables"]}
    (node,) = parts["nodes.json"]
    assert (node["name"], node["agent_version"]) == ("alpha", "0")
    assert "digest" not in files["nodes.json"]
    assert "README.txt" in files


def test_a_long_log_is_cut_at_a_line_so_that_no_half_of_a_secret_stays(
    cast: Cast, secrets: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    secret = secrets["file secret_key"]
    line = secret + "\n"
    (tmp_path / "log/web.log").write_text(line * (2 * TAIL_BYTES // len(line)))

    text = files_of(make_bundle(by=cast.admin)[1])["log/web.log"]

    assert set(text.splitlines()) == {MASK}


def test_only_a_site_admin_downloads_it_and_the_trail_says_so(cast: Cast) -> None:
    for person in (cast.operator, cast.auditor, cast.owner):
        with pytest.raises(NotAllowed):
            make_bundle(by=person)

    client = Client()
    client.force_login(cast.admin)
    assert "Support bundle" in client.get("/system/").content.decode()
    answer = client.post("/system/support-bundle/")

    assert answer.headers["Content-Disposition"].startswith('attachment; filename="muster-support-')
    assert "versions.json" in files_of(answer.content)
    assert AuditEvent.objects.get(action="support.bundle").actor == cast.admin
    assert client.get("/system/support-bundle/").status_code == 405


def test_an_operator_is_not_offered_the_button(cast: Cast) -> None:
    client = Client()
    client.force_login(cast.operator)

    assert "Support bundle" not in client.get("/system/").content.decode()


def test_the_command_writes_a_file_that_its_owner_alone_reads(tmp_path: Path) -> None:
    call_command("support_bundle", folder=tmp_path)

    (file,) = tmp_path.glob("muster-support-*.tar.gz")
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(CommandError, match="cannot be written"):
        call_command("support_bundle", folder=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def-123", f"Authorization: Bearer {MASK}"),
        ("postgres://muster:p%40ss@host/name", f"postgres://{MASK}@host/name"),
        ("key whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", f"key {MASK}"),
        ('{"password": "hunter2"}', f'{{"password": "{MASK}"}}'),
        (
            "a job named muster_patience, at http://host:8080/x",
            "a job named muster_patience, at http://host:8080/x",
        ),
    ],
)
def test_what_looks_like_a_secret_is_masked_and_other_text_stays(text: str, shown: str) -> None:
    assert Masker([])(text) == shown
