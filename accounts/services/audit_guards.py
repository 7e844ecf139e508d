"""The triggers that guard records and counters: whether each is there and turned on; an owner can take them away."""

from __future__ import annotations

import pgtrigger
from django.db import connection

_ON = """
SELECT relname, tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
WHERE relnamespace = 'public'::regnamespace AND NOT tgisinternal AND tgenabled = 'O'
"""


def missing_trigger() -> str | None:
    """In words, the first trigger that is not there or turned off; None when all of them guard."""
    wanted = sorted(
        (model._meta.db_table, trigger.get_pgid(model), trigger.name)
        for model, trigger in pgtrigger.registered()
    )
    with connection.cursor() as cursor:
        cursor.execute(_ON)
        there = set(cursor.fetchall())
    for table, identifier, name in wanted:
        if (table, identifier) not in there:
            return f"the trigger {name} of the table {table} is missing or turned off"
    return None
