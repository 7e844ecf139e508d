"""The command line of `manage.py up`, and the environment of its processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from config.up.nodes import demo_nodes, this_machine
from config.up.options import parse
from config.up.services import AGENT_MAY_KNOW, Environment, agent, allowed_hosts, web_processes, webs
from config.up.state import StateError, StateFolder
from config.up.web import forget_the_dead


@pytest.fixture(autouse=True)
def no_port(monkeypatch) -> None:
    monkeypatch.delenv("PORT", raising=False)


def an_environment(path: Path, monkeypatch, *arguments: str) -> Environment:
    monkeypatch.setenv("MUSTER_STATE", str(path))
    env = Environment(StateFolder.find(), parse(list(arguments)))
    env.use_servers("postgres://muster:a-password@127.0.0.1:1/muster", "redis://:a-password@127.0.0.1:1/0")
    return env


def test_port_comes_from_the_option_then_from_the_environment(monkeypatch) -> None:
    assert parse([]).port is None

    monkeypatch.setenv("PORT", "9001")
    assert (parse([]).port, parse([]).port_from) == (9001, "PORT")
    assert (parse(["--port", "9002"]).port, parse(["--port", "9002"]).port_from) == (9002, "--port")


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1"])
def test_a_bad_port_is_refused_by_name(monkeypatch, capsys, port: str) -> None:
    monkeypatch.setenv("PORT", port)

    with pytest.raises(SystemExit):
        parse([])
    assert f"PORT is {port}" in capsys.readouterr().err.replace("'", "")


@pytest.mark.parametrize("nodes", ["-1", "65"])
def test_an_absurd_number_of_nodes_is_refused(capsys, nodes: str) -> None:
    with pytest.raises(SystemExit):
        parse(["--nodes", nodes])
    assert f"--nodes is {nodes}; choose 0 to 64" in capsys.readouterr().err


def test_demo_nodes_have_names_of_their_own_and_say_that_gpus_are_simulated() -> None:
    nodes = demo_nodes(6)

    assert [node.name for node in nodes] == [f"node-{n}" for n in range(1, 7)]
    assert [bool(node.fake_gpus) for node in nodes] == ["simulated" in node.labels for node in nodes]


@pytest.mark.parametrize("count", [1, 3])
def test_this_machine_is_promised_once(count: int) -> None:
    whole, parts = this_machine(1)[0], this_machine(count)

    assert sum(node.memory_mib for node in parts) <= whole.memory_mib
    assert all(node.cpus >= 1 for node in parts)
    assert not any(node.fake_gpus for node in parts)


def test_an_agent_gets_no_secret(tmp_path: Path, monkeypatch) -> None:
    for name in ("DATABASE_URL", "REDIS_URL", "MUSTER_SECRET_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a-password")
    env = an_environment(tmp_path, monkeypatch)
    env.join_token_file.write_text("muster_join_abc_a-password\n")

    process = agent(env, env.nodes[0])

    assert set(process.env) <= {*AGENT_MAY_KNOW, "PYTHONUNBUFFERED"}
    assert not any("a-password" in text for text in [*process.env.values(), *process.argv])


def test_a_service_gets_to_know_where_the_servers_are(tmp_path: Path, monkeypatch) -> None:
    env = an_environment(tmp_path, monkeypatch, "--no-demo")

    process = webs(env, 3, lambda: True)[0]

    assert process.env["DATABASE_URL"].startswith("postgres://muster:a-password@")
    assert process.env["MUSTER_DEMO"] == "0"
    assert process.env["OMP_NUM_THREADS"] == "1"
    assert not any("a-password" in text for text in process.argv)


def test_hosts_follow_the_address() -> None:
    assert allowed_hosts("127.0.0.1") == ["localhost", "127.0.0.1", "[::1]", "127.0.0.1"]
    assert "192.0.2.1" in allowed_hosts("192.0.2.1")
    assert "*" not in allowed_hosts("0.0.0.0")


def test_real_gpus_are_offered_by_one_agent_of_a_machine() -> None:
    for nodes in (demo_nodes(6), this_machine(3)):
        offering = [
            node.name for node in nodes if not {"--no-gpus", "--fake-gpus"} & set(node.agent_arguments())
        ]

        assert offering == ["node-1"]


def test_a_second_core_gets_a_second_web_process(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("MUSTER_WEB_PROCESSES", raising=False)
    for cores, processes in ((1, 1), (2, 2), (64, 2)):
        monkeypatch.setattr("config.up.services.cores", lambda cores=cores: cores)
        assert web_processes() == processes

    monkeypatch.setenv("MUSTER_WEB_PROCESSES", "3")
    (tmp_path / "run" / "counters").mkdir(parents=True)
    (tmp_path / "run" / "counters" / "counter_1.db").touch()
    made = webs(an_environment(tmp_path, monkeypatch), 3, lambda: False)

    assert [process.name for process in made] == ["web", "web-2", "web-3"]
    assert {process.pass_fds for process in made} == {(3,)}
    assert {process.env["PROMETHEUS_MULTIPROC_DIR"] for process in made} == {
        str(tmp_path / "run" / "counters")
    }
    assert not list((tmp_path / "run" / "counters").iterdir())


def test_one_web_process_counts_for_itself(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MUSTER_WEB_PROCESSES", "1")

    (only,) = webs(an_environment(tmp_path, monkeypatch), 3, lambda: True)

    assert "PROMETHEUS_MULTIPROC_DIR" not in only.env


@pytest.mark.parametrize("words", ["0", "17", "two", "-1"])
def test_a_bad_number_of_web_processes_is_refused_by_name(monkeypatch, words: str) -> None:
    monkeypatch.setenv("MUSTER_WEB_PROCESSES", words)

    with pytest.raises(StateError, match=f"MUSTER_WEB_PROCESSES is '{words}'"):
        web_processes()


def test_what_a_dead_process_had_open_is_forgotten(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    kept = [f"gauge_livesum_{os.getpid()}.db", "counter_999999999.db"]
    for name in [*kept, "gauge_livesum_999999999.db"]:
        (tmp_path / name).touch()

    forget_the_dead()

    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(kept)
