"""Settings: what they refuse, and what they take from the environment."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.up.web import server_config

ROOT = Path(__file__).resolve().parents[2]
PRODUCTION = {
    "DJANGO_SETTINGS_MODULE": "config.settings.production",
    "MUSTER_SECRET_KEY": "x7Kq" * 20 + "-not-a-real-one!",
    "MUSTER_ALLOWED_HOSTS": "muster.example.org",
    "DATABASE_URL": "postgres://muster:secret@127.0.0.1:1/muster",
    "REDIS_URL": "redis://127.0.0.1:1/0",
}


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "MUSTER_STATE": os.environ["MUSTER_STATE"], **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


READ = "from django.conf import settings; print(repr(getattr(settings, '{}')))"


@pytest.mark.parametrize(
    "missing", ["MUSTER_SECRET_KEY", "MUSTER_ALLOWED_HOSTS", "DATABASE_URL", "REDIS_URL"]
)
def test_production_does_not_start_without(missing: str) -> None:
    env = {name: value for name, value in PRODUCTION.items() if name != missing}

    done = python(READ.format("DEBUG"), **env)

    assert done.returncode != 0
    assert f"{missing} is not set" in done.stderr


def test_production_never_has_demo_passwords() -> None:
    done = python(READ.format("MUSTER_DEMO"), MUSTER_DEMO="1", **PRODUCTION)

    assert done.stdout.strip() == "False"


def test_the_environment_sets() -> None:
    """All at once, for a process takes a second to say one; no value is what another name has."""
    given = {
        "SCHEDULING_POLICY": "fairshare",
        "QUOTA_PROVIDER": "slurm",
        "K8S_QUOTA_NAMESPACE": "jobs",
        "K8S_CREATE_RESOURCE_QUOTAS": "true",
        "SLURM_ACCOUNT_PREFIX": "p-",
        "EXECUTOR_SLURM_REST_API_URL": "http://127.0.0.1:6820",
        "EXECUTOR_SLURM_AUTH_TOKEN": "secret",
        "INVENTORY_SERVICE_URL": "http://127.0.0.1:9",
        "CHECKPOINT_PATH": "/scratch/c",
    }
    read = f"from django.conf import settings; print({{name: getattr(settings, name) for name in {list(given)}}})"

    done = python(read, DJANGO_SETTINGS_MODULE="config.settings.development", **given)

    assert ast.literal_eval(done.stdout) == given | {"K8S_CREATE_RESOURCE_QUOTAS": True}, done.stderr


def test_the_secret_key_of_development_is_made_once_and_private(tmp_path: Path) -> None:
    env = {"DJANGO_SETTINGS_MODULE": "config.settings.development", "MUSTER_STATE": str(tmp_path)}

    first, second = (python(READ.format("SECRET_KEY"), **env).stdout for _ in range(2))

    assert len(first.strip()) > 50
    assert first == second
    assert (tmp_path / "secret_key").stat().st_mode & 0o777 == 0o600


def test_a_static_file_that_changes_under_a_running_server_is_served_whole(tmp_path: Path) -> None:
    code = f"""
import django; django.setup()
from django.conf import settings
settings.STATICFILES_DIRS = [{str(tmp_path)!r}]
from pathlib import Path
from django.test import RequestFactory
from whitenoise.middleware import WhiteNoiseMiddleware
file = Path({str(tmp_path)!r}) / "look.css"
file.write_text("a")
server = WhiteNoiseMiddleware(lambda request: None)
def get():
    answer = server(RequestFactory().get("/static/look.css"))
    return answer["Content-Length"], b"".join(answer).decode(), answer["Cache-Control"]
print(get())
file.write_text("longer")
print(get())
"""

    done = python(code, DJANGO_SETTINGS_MODULE="config.settings.development")

    assert done.stdout.splitlines() == [
        "('1', 'a', 'max-age=0, public')",
        "('6', 'longer', 'max-age=0, public')",
    ], done.stderr


def test_the_server_does_not_decide_who_is_a_proxy() -> None:
    """It would believe X-Forwarded-For of any program on this machine, before the application is asked."""
    config = server_config()
    config.load()

    layers, app = [], config.loaded_app
    while app is not None:
        layers.append(type(app).__name__)
        app = getattr(app, "app", None)
    assert "ProxyHeadersMiddleware" not in layers


def test_what_is_no_address_of_a_proxy_stops_the_start() -> None:
    code = python("import config.settings.base", MUSTER_TRUSTED_PROXIES="10.0.0.0/8,somewhere")

    assert code.returncode != 0
    assert "MUSTER_TRUSTED_PROXIES" in code.stderr
