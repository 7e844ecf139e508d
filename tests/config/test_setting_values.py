"""Values of settings: each door names the variable, its value, its place and what is allowed, and nothing starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from config.settings.declared import EXTRAS, GROUPS, SETTINGS, Setting, problems, read
from config.settings.declared.values import WrongValue, allowed, value_of
from config.settings.settings_file import settings_file
from quotas.core.decay import MODES
from quotas.providers.registry import PROVIDERS
from scheduler.core.policy import BACKFILLS, POLICIES

ROOT = Path(__file__).resolve().parents[2]

#: The variables that the product promised from the beginning, of each a value that makes no sense.
WRONG = {
    "SCHEDULING_POLICY": "nosuch",
    "QUOTA_PROVIDER": "pbs",
    "K8S_CREATE_RESOURCE_QUOTAS": "maybe",
    "EXECUTOR_SLURM_REST_API_URL": "slurm-controller:6820",
    "DATABASE_URL": "localhost",
    "INVENTORY_SERVICE_URL": "ftp://inventory",
    "CHECKPOINT_PATH": "checkpoints",
    "MUSTER_GRACE_SECONDS": "abc",
    "MUSTER_FAIRSHARE_HALF_LIFE_SECONDS": "0",
    "MUSTER_FAIRSHARE_WINDOW_SECONDS": "1.5",
    "MUSTER_FAIRSHARE_WEIGHTS": "gpu=1,gpu=2",
    "MUSTER_PLAN_SECONDS": "nan",
    "QUOTA_HEADROOM_PERCENT": "120",
    "MUSTER_CHECKPOINT_MIB": "-1",
    "MUSTER_KEEP_JOBS_DAYS": "ten",
    "MUSTER_MAX_BULK": "0",
    "LEDGER_FORGIVES": "lost,bored",
    "LEDGER_CURRENCY": "Euro",
}


def manage(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    known = {
        name: os.environ[name]
        for name in ("PATH", "MUSTER_STATE", "DATABASE_URL", "REDIS_URL")
        if name in os.environ
    }
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**known, "MUSTER_SETTINGS_FILE": "", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_start_with_wrong_values_names_each_of_them_and_what_is_allowed() -> None:
    for command in (["up"], ["check"]):
        done = manage(*command, **WRONG)

        said = dict(line.split(" is ", 1) for line in done.stderr.splitlines())
        assert (done.returncode, set(said)) == (1, set(WRONG)), done.stderr
        for name, line in said.items():
            assert line.endswith(f"Allowed: {allowed(SETTINGS[name])}.")
            assert repr(WRONG[name]) in line or SETTINGS[name].secret


def test_the_value_of_a_secret_is_in_no_message() -> None:
    done = manage("check", DATABASE_URL="my-password")

    assert "DATABASE_URL is a secret." in done.stderr
    assert "my-password" not in done.stderr + done.stdout


def test_a_name_with_a_typing_error_is_named_with_the_setting_it_is_like() -> None:
    done = manage("version", MUSTER_GRACE_SECOND="3", MUSTER_JOB_ID="7")

    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "MUSTER_GRACE_SECOND is no setting and has no effect. Do you mean MUSTER_GRACE_SECONDS?"
    ]


def test_a_name_that_nothing_honours_is_refused_with_the_way_out() -> None:
    done = manage("up", MUSTER_AUDIT_S3_BUCKET="trail")

    assert done.returncode == 1
    assert done.stderr.startswith("MUSTER_AUDIT_S3_BUCKET is set: ")
    assert "MUSTER_AUDIT_CHECKPOINT_FILE" in done.stderr


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_default_is_allowed_and_every_kind_refuses_something(setting: Setting) -> None:
    if setting.default is not None and setting.default not in ("", []):
        text = setting.default
        if isinstance(text, bool):
            text = str(text).lower()
        elif isinstance(text, list):
            text = ",".join(text)
        elif isinstance(text, dict):
            text = ",".join(f"{name}={number}" for name, number in text.items())
        assert value_of(setting, str(text)) == setting.default
    wrong: list[str] = {
        "int": ["1.5", "x", "-1", str(2**63)],
        "float": ["x", "nan", "inf", "-0.1"],
        "bool": ["maybe", "2"],
        "dict": ["gpu", "gpu=x", "gpu=-1"],
    }.get(setting.kind, ["no such choice"] if setting.choices or setting.form else [])
    for text in wrong:
        with pytest.raises(WrongValue):
            value_of(setting, text)


def test_the_choices_are_those_that_the_product_has() -> None:
    """The declarations need neither Django nor the core, so they repeat the names."""
    assert SETTINGS["SCHEDULING_POLICY"].choices == POLICIES
    assert SETTINGS["SCHEDULING_BACKFILL"].choices == BACKFILLS
    assert set(SETTINGS["QUOTA_PROVIDER"].choices) == set(PROVIDERS)
    assert set(SETTINGS["MUSTER_FAIRSHARE_MODE"].choices) == set(MODES)


@pytest.mark.parametrize(
    "text", ["lab", "lab=x", "local=a:B", "Lab=a:B", "lab=a:B,lab=c:D", "lab=a.b", f"{'x' * 17}=a:B"]
)
def test_a_provider_of_the_site_is_a_name_with_its_class(text: str) -> None:
    with pytest.raises(WrongValue, match="a list separated by commas, of name=module:Class"):
        value_of(SETTINGS["QUOTA_PROVIDERS"], text)
    assert value_of(SETTINGS["QUOTA_PROVIDERS"], "lab=a.b:C, other-1=d:E") == ["lab=a.b:C", "other-1=d:E"]


def test_the_provider_of_new_quotas_may_be_one_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUOTA_PROVIDER", "lab")
    with pytest.raises(WrongValue, match="one of local, k8s, slurm, or a name of QUOTA_PROVIDERS"):
        read("QUOTA_PROVIDER")
    monkeypatch.setenv("QUOTA_PROVIDERS", "lab=a.b:C")
    assert read("QUOTA_PROVIDER") == "lab"


# ---------------------------------------------------------------- the settings file

GOOD = """\
# This site.
MUSTER_GRACE_SECONDS: 30
MUSTER_TRUSTED_PROXIES: [10.0.0.0/8, 127.0.0.1]
MUSTER_FAIRSHARE_WEIGHTS: {gpu: 1, cpu: 0.25}
MUSTER_LOG_JSON: no
MUSTER_KEEP_JOBS_DAYS: 90
MUSTER_METRICS_TOKEN: a-long-secret-token
"""


def a_file(folder: Path, text: str, mode: int = 0o600) -> str:
    file = folder / "muster.yaml"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def shown(file: str, **env: str) -> dict[str, Any]:
    done = manage("settings", "--json", MUSTER_SETTINGS_FILE=file, **env)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MUSTER_TRUSTED_PROXIES", "10.0.0.0/8,proxy", "of addresses and networks such as 10.0.0.0/8."),
        ("MUSTER_WEBHOOK_NETWORKS", "10.0.0.0/40", "of addresses and networks such as 10.0.0.0/8."),
        ("MUSTER_WEBHOOK_PORTS", "443,65536", "of whole numbers from 1 to 65535."),
        ("MUSTER_TRUSTED_ORIGINS", "muster.example.org", "of addresses that begin with http:// or https://."),
    ],
)
def test_each_item_of_a_list_is_checked(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)

    assert problems() == [f"{name} is '{value}'. Allowed: a list separated by commas, {said}"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MUSTER_STORAGE", "ftp://x", "MUSTER_STORAGE is 'ftp://x': no storage of that kind is known."),
        ("MUSTER_STORAGE_KEYS", "short", "Key 1 of MUSTER_STORAGE_KEYS is not 32 bytes."),
    ],
)
def test_what_only_django_checks_ends_a_command_with_the_sentence_alone(
    name: str, value: str, said: str
) -> None:
    done = manage("settings", **{name: value})

    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


def test_the_file_sets_what_the_environment_does_not(tmp_path: Path) -> None:
    file = a_file(tmp_path, GOOD)

    rows = shown(file, MUSTER_KEEP_JOBS_DAYS="7", MUSTER_STATE=str(tmp_path / "state"))

    found = {name: (rows[name]["value"], rows[name]["source"]) for name in rows}
    assert found["MUSTER_GRACE_SECONDS"] == (30, f"{file}, line 2")
    assert found["MUSTER_TRUSTED_PROXIES"] == (["10.0.0.0/8", "127.0.0.1"], f"{file}, line 3")
    assert found["MUSTER_FAIRSHARE_WEIGHTS"] == ({"gpu": 1.0, "cpu": 0.25}, f"{file}, line 4")
    assert found["MUSTER_KEEP_JOBS_DAYS"] == (7, "environment")
    assert found["MUSTER_METRICS_TOKEN"] == ("[secret]", f"{file}, line 7")
    assert found["MUSTER_LEASE_SECONDS"] == (15, "default")
    assert list(rows) == [setting.name for _, group in GROUPS for setting in group]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("MUSTER_GRACE_SECOND: 3\n", "line 1: there is no setting MUSTER_GRACE_SECOND. Do you mean"),
        ("MUSTER_GRACE_SECONDS: 3\n\nMUSTER_GRACE_SECONDS: 4\n", "MUSTER_GRACE_SECONDS is there twice, first in"),
        ("PORT: {a: [1]}\n", "line 1: PORT has a value that is neither"),
        ("MUSTER_PROCESS: muster-web\n", "line 1: there is no setting MUSTER_PROCESS"),
        ("PORT: 80\n\tMUSTER_GRACE_SECONDS: 3\n", "line 2: not YAML"),
        ("- PORT\n", "write one `NAME: value` on each line"),
        ("\nMUSTER_GRACE_SECONDS: abc\n", "MUSTER_GRACE_SECONDS is 'abc' ({file}, line 2). Allowed: a whole number"),
    ],
)  # fmt: skip
def test_a_line_that_is_wrong_is_named_and_nothing_starts(tmp_path: Path, text: str, said: str) -> None:
    file = a_file(tmp_path, text.replace("twice, first in line 1", ""))

    done = manage("up", MUSTER_SETTINGS_FILE=file)

    assert done.returncode == 1
    assert said.replace("{file}", file) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_list_or_a_map_of_one_is_not_taken_for_its_item(tmp_path: Path) -> None:
    text = (
        "MUSTER_GRACE_SECONDS: [1]\nMUSTER_LOG_LEVEL: [INFO]\nPORT: {a: 1}\nMUSTER_TRUSTED_PROXIES: {a: 1}\n"
    )
    file = a_file(tmp_path, text)

    found = settings_file({"MUSTER_SETTINGS_FILE": file}, SETTINGS).problems

    assert [problem.partition("Allowed")[0] for problem in found] == [
        f"{file}, line 1: MUSTER_GRACE_SECONDS has a list as its value. ",
        f"{file}, line 2: MUSTER_LOG_LEVEL has a list as its value. ",
        f"{file}, line 3: PORT has a map as its value. ",
        f"{file}, line 4: MUSTER_TRUSTED_PROXIES has a map as its value. ",
    ]
    assert "Allowed: a whole number of seconds from 0 to 86400. Write the value alone" in found[0]


def test_a_setting_without_the_packages_that_it_needs_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "OTEL_EXPORTER_OTLP_ENDPOINT"
    monkeypatch.setenv(name, "http://127.0.0.1:4318")
    assert problems() == []

    monkeypatch.setitem(EXTRAS, name, ("nowhere.exporter", "requirements-tracing.txt"))

    (problem,) = problems()
    assert problem.startswith(
        f"{name} is set, and the package nowhere.exporter is not installed. Install it: "
    )
    assert problem.endswith(" -m pip install --require-hashes -r requirements-tracing.txt.")


def test_a_secret_is_not_read_from_a_file_that_everybody_can_read(tmp_path: Path) -> None:
    file = a_file(tmp_path, GOOD, mode=0o644)

    done = manage("up", MUSTER_SETTINGS_FILE=file)

    assert done.returncode == 1
    assert (
        "line 7: MUSTER_METRICS_TOKEN is a secret, and every account of this machine can read" in done.stderr
    )
    assert "a-long-secret-token" not in done.stderr


def test_a_file_that_is_named_and_missing_is_an_error(tmp_path: Path) -> None:
    done = manage("up", MUSTER_SETTINGS_FILE=str(tmp_path / "none.yaml"))

    assert (done.returncode, "none.yaml cannot be read" in done.stderr) == (1, True)
