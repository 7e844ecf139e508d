"""Whose account runs whose jobs: nobody's is the system's, and no two people have one."""

from __future__ import annotations

import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.agent.isolation.accounts import Account, Accounts, NoAccount
from scheduler.agent.isolation.means import FIRST_UID, People
from scheduler.agent.isolation.probe import BadSite, read_accounts

THERE = {"alice": 2001, "postgres": 106, "nobody": 65534, "toor": 0, "asmith": 2002}


@pytest.fixture(autouse=True)
def accounts_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(name: str) -> Any:
        return SimpleNamespace(pw_uid=THERE[name], pw_gid=77, pw_name=name, pw_dir=f"/home/{name}")

    monkeypatch.setattr(pwd, "getpwnam", entry)


def test_a_person_has_the_account_of_their_name(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, People(accounts=True))

    assert accounts.account_of("alice") == Account(2001, 77, "alice", "/home/alice")


@pytest.mark.parametrize("name", ["postgres", "nobody", "toor"])
def test_accounts_of_the_system_are_nobodys(tmp_path: Path, name: str) -> None:
    account = Accounts(tmp_path, People(accounts=True)).account_of(name)

    assert account.uid >= FIRST_UID
    assert account.home == ""


def test_the_site_maps_people_to_other_accounts_and_not_to_the_systems(tmp_path: Path) -> None:
    mapped = {"alice": "asmith", "bob": "postgres", "carol": "gone"}
    accounts = Accounts(tmp_path, People(accounts=True, mapped=mapped))

    assert accounts.account_of("alice").uid == 2002
    with pytest.raises(NoAccount, match="postgres, which is an account of the system"):
        accounts.account_of("bob")
    with pytest.raises(NoAccount, match="the account gone, which this node does not have"):
        accounts.account_of("carol")


def test_a_number_stays_a_persons_and_is_the_same_on_every_node(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = Accounts(tmp_path / "a", People(accounts=True)).account_of("zoe")

    assert Accounts(tmp_path / "a", People(accounts=True)).account_of("zoe") == first
    assert Accounts(tmp_path / "b", People(accounts=True)).account_of("zoe") == first


def test_two_people_never_share_a_number(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path, People(accounts=True, uids=3))
    numbers = {accounts.account_of(name).uid for name in ("x", "y", "z")}

    assert numbers == {FIRST_UID, FIRST_UID + 1, FIRST_UID + 2}
    with pytest.raises(NoAccount, match="are in use"):
        accounts.account_of("w")


def test_a_map_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "map").write_text('["alice"]')

    with pytest.raises(BadSite, match="has to be an object of JSON"):
        read_accounts(tmp_path / "map")
