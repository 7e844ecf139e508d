"""What belongs into one notification: elements of one array, or jobs of one project within one burst."""

from __future__ import annotations

from typing import Final

#: Jobs of a notification that are named one by one; the rest is counted.
MOST_JOBS: Final = 20
#: Elements of an array go on ending for long: a notification that nobody has read goes on counting for a day.
ARRAY_SECONDS: Final = 24 * 3600


def group_of_job(*, number: int, project_id: int, array_id: str | None, each: bool, mail: bool | None) -> str:
    """The key that jobs of one notification share.

    `each` keeps elements of an array apart, as --mail-type=ARRAY_TASKS asks. Jobs whose own words decide about
    mail are not mixed with others: what one asks for by mail must not mail the rest.
    """
    own = {True: ":mail", False: ":no-mail", None: ""}[mail]
    if array_id and not each:
        return f"array:{array_id}{own}"
    return f"job:{number}{own}" if each else f"project:{project_id}{own}"


def is_array(group: str) -> bool:
    return group.startswith("array:")


def array_of(group: str) -> str | None:
    """The key of the array that a group is about."""
    return group.split(":")[1] if is_array(group) else None


def array_number_of(group: str) -> int | None:
    """The number of the array that a group is about; None also for one from before arrays had numbers."""
    key = array_of(group) or ""
    return int(key) if key.isdecimal() else None


def thing_of_job(array: str | None, index: int | None) -> str:
    """What a notification is about besides its job: `element:123_3` for an element of array 123, "" for other jobs."""
    return "" if array is None else f"element:{array}_{index}"


def said_of(thing: str, number: int | None) -> str | None:
    """The number of a notification's first job as people say it: `123_3` for an element."""
    about, _, said = thing.partition(":")
    return said if about == "element" else None if number is None else str(number)
