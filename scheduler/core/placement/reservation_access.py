"""Reservation access: which reservation a pending job names, and which reservations keep a job out."""

from __future__ import annotations

import numpy as np

from scheduler.core.columns import Bools, Ints
from scheduler.core.snapshot.snapshot import Snapshot

#: In place of a row: the job names no reservation, or one that is not there any more.
NONE: int = -1
GONE: int = -2


def named_rows(snapshot: Snapshot) -> Ints:
    """Of each pending job the row of the reservation that it names, or NONE, or GONE."""
    named, ids = snapshot.pending.reservation_id, snapshot.reservations.id
    found = np.full(len(named), NONE, dtype=np.int64)
    if not named.any():
        return found
    found[named > 0] = GONE
    for row, number in enumerate(ids.tolist()):
        if number > 0:
            found[named == number] = row
    return found


def is_welcome(snapshot: Snapshot, row: int) -> Bools:
    """The pending jobs that a reservation never keeps out of what it holds.

    These are the job that it is held for, and where it is magnetic the jobs of its projects and people. A job that
    names a reservation runs on what that holds, and no other reservation holds the same.
    """
    reservations, pending = snapshot.reservations, snapshot.pending
    welcome: Bools = np.isin(pending.id, reservations.job_ids[row]) | (pending.reservation_id > 0)
    if reservations.magnetic.item(row):
        welcome |= is_for(snapshot, row)
    return welcome


def is_for(snapshot: Snapshot, row: int) -> Bools:
    """The pending jobs whose project or person a reservation is for."""
    reservations, pending = snapshot.reservations, snapshot.pending
    mine: Bools = np.isin(pending.project_id, reservations.project_ids[row]) | np.isin(
        pending.user_id, reservations.user_ids[row]
    )
    return mine
