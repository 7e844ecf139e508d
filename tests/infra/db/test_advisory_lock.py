"""One at a time, also where a pooler gives every transaction another connection."""

from __future__ import annotations

import pytest
from django.db import connection

from infra.db import advisory_lock as module
from infra.db.advisory_lock import hold_lock, try_lock
from quotas.services import shares
from scheduler.services import retention

NUMBER = 0x74657374


@pytest.mark.django_db
def test_a_second_one_is_told_that_somebody_is_at_it() -> None:
    with try_lock(NUMBER) as first, try_lock(NUMBER) as second, try_lock(NUMBER + 1) as other:
        found = (first, second, other)
    with try_lock(NUMBER) as after:
        assert (*found, after) == (True, False, True, True)


@pytest.mark.django_db
def test_no_lock_is_left_on_a_session_that_a_pooler_gives_to_the_next() -> None:
    holder = hold_lock(NUMBER)
    assert holder is not None
    holder.rollback()  # the pooler may pass the session on from here

    with try_lock(NUMBER) as ours:
        assert ours
    holder.close()


@pytest.mark.django_db(transaction=True)
def test_a_run_keeps_its_right_whatever_connection_its_statements_go_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again: list[object] = []

    def run(*_: object) -> int:
        connection.close()
        again.extend([shares.recount_shares(), retention.prune_all()])
        return 7

    monkeypatch.setattr(shares, "recount_rows", run)
    monkeypatch.setattr(retention, "run_rules", lambda: (run(), {"cycles": 3})[1])

    with try_lock(retention.RUN_LOCK), try_lock(shares.RECOUNT_LOCK):
        run()
    assert again == [0, {}]
    with try_lock(retention.RUN_LOCK):
        assert shares.recount_shares() == 7
    with try_lock(shares.RECOUNT_LOCK):
        assert retention.prune_all() == {"cycles": 3}
    assert again == [0, {}] * 3


@pytest.mark.django_db
def test_it_goes_over_the_same_tls_as_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    options = connection.settings_dict["OPTIONS"] | {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem"}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)

    asked = module.connection_parameters()

    assert (asked["sslmode"], asked["sslrootcert"]) == ("verify-full", "/etc/ca.pem")
