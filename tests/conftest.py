"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir
from xdist.scheduler import LoadFileScheduling

from tests.support.embedded import CACHE, ROOT

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.test import Client

gc.disable()  # until all tests are found: nothing of what is loaded for them is garbage

# One machine for everybody: a slow example is not a failed one. CI looks further than a developer's run.
settings.register_profile(
    "default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
# What it has read in all our modules and made of Unicode takes each worker 10 s; CI keeps this folder. Root, who runs
# beside the checkout's account, leaves nothing there.
if ROOT.stat().st_uid == os.geteuid():
    set_hypothesis_home_dir(CACHE / "hypothesis")

IN_A_BROWSER = "tests/e2e/"
#: Objects made before garbage is looked for among the youngest, and such looks before one among older objects. Python's
#: own first number is 700, which a request of the test client passes many times.
COLLECT_AFTER: Final = (20_000, 10, 10)
#: Servers that only root can start.
NEED_ROOT = {"slurm"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a browser or a whole portal, and let that come first; then the files that take longest.

    Starting and killing portals is mostly waiting, in which another worker can compute; and what takes a minute
    in one piece must not begin when the other worker has nothing left to do.
    """
    seconds = known_seconds(config)
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "browser" in fixtures:
            item.add_marker(pytest.mark.browser)
        if "live_stack" in fixtures:
            item.add_marker(pytest.mark.stack)
        if NEED_ROOT & set(fixtures):
            item.add_marker(pytest.mark.root)
    items.sort(key=lambda item: (_when(item), -seconds.get(_file_of(item.nodeid), 0)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on, garbage is looked for among what tests make, and not among all modules and thousands of tests."""
    import config.urls  # noqa: F401  every page, which the first request would load within a test and its transaction

    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    # A logger that was used once keeps its processors, and `capture_logs` of a later test would miss what it says.
    structlog.configure(cache_logger_on_first_use=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What needs root is skipped without it, with the reason; MUSTER_REQUIRE_ROOT makes that a failure."""
    if item.get_closest_marker("root") is None or os.geteuid() == 0:
        return
    if os.environ.get("MUSTER_REQUIRE_ROOT"):
        pytest.fail("MUSTER_REQUIRE_ROOT is set, and this is an ordinary account")
    pytest.skip("needs root: .ci/run by root tries it")


def _when(item: pytest.Item) -> int:
    if item.nodeid.startswith(IN_A_BROWSER):
        return 0
    return 1 if item.get_closest_marker("stack") is not None else 2


# ---------------------------------------------------------------- how long files take

#: What the runs before have measured, in pytest's cache: seconds by file.
SECONDS: Final = "muster/seconds"
#: Before the first run, the files that are known to take long.
LONG: Final = {
    "tests/rights/test_every_route.py": 108,
    "tests/config/up/servers/test_roles.py": 97,
    "tests/config/up/test_up.py": 92,
    "tests/scheduler/api/test_schema.py": 50,
    "tests/config/test_database_away.py": 37,
    "tests/chaos/test_smoke.py": 34,
    "tests/scheduler/admin/test_pages.py": 29,
    "tests/scheduler/agent/test_restarts.py": 27,
    "tests/scheduler/state/load/test_resident.py": 26,
    "tests/scheduler/realtime/test_live.py": 26,
    "tests/scheduler/agent/test_jobs.py": 25,
    "tests/scheduler/agent/test_elements.py": 24,
    "tests/scheduler/web/test_access.py": 23,
    "tests/scheduler/services/submission/test_declaration.py": 23,
    "tests/scheduler/state/settle/test_quota_machine.py": 22,
    "tests/accounts/web/test_guessing.py": 22,
    "tests/scheduler/state/lease/test_saturated_database.py": 21,
    "tests/config/up/test_memory.py": 21,
    "tests/config/test_tampering.py": 20,
    "tests/scheduler/agent/test_checkpoints.py": 20,
    "tests/scheduler/agent/test_secrets.py": 19,
    "tests/config/database/test_schema.py": 18,
    "tests/architecture/test_readers.py": 18,
    "tests/scheduler/state/apply/test_apply_starts.py": 17,
    "tests/infra/test_plain_text.py": 17,
    "tests/architecture/test_phrases.py": 16,
}


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def known_seconds(config: pytest.Config) -> dict[str, int]:
    """By file, how long its tests took at the last run; the same for all workers, which start with one cache."""
    cache = getattr(config, "cache", None)  # None with `-p no:cacheprovider`
    return dict(cache.get(SECONDS, LONG)) if cache is not None else LONG


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep how long each file took; of a part of the suite, what was measured of the others stays."""
    config = session.config
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    cache = getattr(config, "cache", None)
    if hasattr(config, "workerinput") or reporter is None or cache is None:
        return
    took: Counter[str] = Counter()
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                took[_file_of(report.nodeid)] += report.duration
    whole = {file: round(seconds) for file, seconds in took.items()}
    cache.set(SECONDS, {**known_seconds(config), **whole})


class OneFileOneWorker(LoadFileScheduling):
    """Each file stays whole on one worker, and those that share a running portal stay together."""

    def _split_scope(self, nodeid: str) -> str:
        return IN_A_BROWSER if nodeid.startswith(IN_A_BROWSER) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneFileOneWorker:
    return OneFileOneWorker(config, log)


@pytest.fixture
def as_user(client: Client) -> Callable[[AbstractBaseUser], Client]:
    """The test client with a person signed in: `as_user(cast.owner).get(…)`."""

    def sign_in(user: AbstractBaseUser) -> Client:
        client.force_login(user, backend="accounts.backends.PasswordBackend")
        return client

    return sign_in


@pytest.fixture(scope="session")
def django_db_modify_db_settings_xdist_suffix() -> None:
    """No suffix: every worker has a PostgreSQL of its own."""


@pytest.fixture(autouse=True)
def quiet_cache(request: pytest.FixtureRequest) -> Iterator[None]:
    """What one test cached, the next must not see."""
    yield
    asked = {"db", "transactional_db"} & set(request.fixturenames)
    if asked or request.node.get_closest_marker("django_db"):
        from django.core.cache import cache

        from infra.circuits.memory import redis_circuit
        from scheduler import selectors
        from scheduler.services.planning import cycles, forecasts, residents, shared_snapshot
        from scheduler.state.lease import planner_liveness
        from scheduler.state.records import recordings

        redis_circuit.answered()
        cache.clear()
        # By the id of a cluster: copies of a world (tests.support.copies) have one.
        selectors.forget_cached_reads()
        residents.forget_residents()
        shared_snapshot.forget_snapshots()
        forecasts.forget_history()
        cycles.forget_rests()
        planner_liveness.forget_terms()
        recordings.forget_bases()


@pytest.fixture(scope="session", autouse=True)
def what_is_kept_does_not_depend_on_speed() -> Iterator[None]:
    """A slow machine would share a picture, or read names and pauses again, where a quick one does not."""
    from scheduler import selectors
    from scheduler.services.planning import shared_snapshot
    from scheduler.templatetags import states

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_snapshot, "QUICK_SECONDS", 600.0)
        patch.setattr(selectors, "NAMES_SECONDS", 600.0)
        patch.setattr(states, "PAUSE_MEMORY_SECONDS", 600)
        yield


@pytest.fixture(scope="session", autouse=True)
def tests_with_real_transactions_are_emptied_quickly() -> Iterator[None]:
    from tests.support import emptying

    end = emptying.install()
    yield
    end()


@pytest.fixture(scope="session", autouse=True)
def answers_are_those_of_the_api_document() -> Iterator[None]:
    """Each answer of the API that a test client gets is compared with docs/reference/openapi.yaml."""
    from django.test import Client

    from tests.infra.api.conformance import faults_of

    asked = Client.request

    def request(self: Client, **asked_for: Any) -> Any:
        response = asked(self, **asked_for)
        faults = faults_of(asked_for.get("REQUEST_METHOD", "GET"), asked_for.get("PATH_INFO", "/"), response)
        assert not faults, "\n".join(faults)
        return response

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "request", request)
        yield


@pytest.fixture(scope="session", autouse=True)
def clients_sign_in_quickly() -> Iterator[None]:
    from django.test import Client

    from tests.support.sign_in import force_login

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "force_login", force_login)
        yield


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What tests have to show beside that they pass, in the output whatever is captured."""
    reports = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
    ]

    def recorded(name: str) -> list[Any]:
        """The values that tests gave to `record_property(name, …)`."""
        return [value for report in reports for key, value in report.user_properties if key == name]

    if counted := recorded("counted"):
        terminalreporter.section("counted")
        for line in sorted(counted):
            terminalreporter.write_line(line)
    if tampered := recorded("tampering"):
        terminalreporter.section("tampering with the records of the database")
        for case, actor, came in tampered:
            terminalreporter.write_line(f"{case}; as the {actor}: {came}")
