"""References that the database checks once for each statement, in place of foreign keys that it checks for each row.

A foreign key of PostgreSQL runs a query for each new row, and writes a lock of each row that is referenced. Rows that
are added by the hundred pay for that more than for themselves. The triggers made here refuse the same: a row whose
parent is not there, a parent that goes while rows refer to it, and another key of a parent.

Who adds rows takes one shared lock for its transaction, who deletes parents takes it alone: so the one sees what the
other has done. The lock is no row's, and nothing is written for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

#: The advisory lock between those who add rows and those who delete parents.
LOCK: Final = "hashtext('muster.references')"


class Reference(NamedTuple):
    """A column of a table that has the key of a row of another; null refers to nothing."""

    column: str
    parent: str
    key: str = "id"


def add_references(table: str, references: Sequence[Reference]) -> str:
    """The statements that begin to check these references of new rows; rows that are there are not looked at."""
    return "\n".join(
        [_on_new_rows(table, references), *(_on_parents(table, reference) for reference in references)]
    )


def drop_references(table: str, references: Sequence[Reference]) -> str:
    """The statements that end it."""
    found = [f"DROP TRIGGER references_added ON {table};", f"DROP FUNCTION {table}_added();"]
    for reference in references:
        name = _name(table, reference)
        found += [
            f"DROP TRIGGER {name}_moved ON {table};",
            f"DROP TRIGGER {name}_gone ON {reference.parent};",
            f"DROP TRIGGER {name}_rekeyed ON {reference.parent};",
            f"DROP FUNCTION {name}_moved();",
            f"DROP FUNCTION {name}_gone();",
            f"DROP FUNCTION {name}_rekeyed();",
        ]
    return "\n".join(found)


def _name(table: str, reference: Reference) -> str:
    return f"{table}_{reference.column}"


def _refuse(table: str, reference: Reference, text: str, keys: str) -> str:
    """What raises the error of a broken foreign key, with the keys that an SQL expression gives."""
    return (
        f"RAISE foreign_key_violation USING CONSTRAINT = '{_name(table, reference)}', TABLE = '{table}',\n"
        f"            MESSAGE = '{text}: ' || ({keys});"
    )


def _on_new_rows(table: str, references: Sequence[Reference]) -> str:
    """One query for all references; which of them is broken is asked only when one is."""
    # An array, so that the parents are found by their index whatever the server expects of the new rows.
    complete = "\n        AND ".join(
        f"(SELECT count(*) FROM {r.parent} WHERE {r.key} = ANY(ARRAY(SELECT {r.column} FROM added)))"
        f" = (SELECT count(DISTINCT {r.column}) FROM added)"
        for r in references
    )
    return f"""
CREATE FUNCTION {table}_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({LOCK});
    IF {complete}
    THEN RETURN NULL; END IF;
{"".join(_refuse_orphans(table, reference) for reference in references)}
    RETURN NULL;
END $$;
CREATE TRIGGER references_added AFTER INSERT ON {table} REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION {table}_added();"""


def _refuse_orphans(table: str, r: Reference) -> str:
    orphans = (
        f"FROM added WHERE {r.column} IS NOT NULL"
        f" AND NOT EXISTS (SELECT FROM {r.parent} WHERE {r.key} = added.{r.column})"
    )
    keys = f"SELECT string_agg(DISTINCT {r.column}::text, ', ') {orphans}"
    return f"""    IF EXISTS (SELECT {orphans}) THEN
        {_refuse(table, r, _no_parent(r), keys)}
    END IF;
"""


def _no_parent(r: Reference) -> str:
    return f"there is no row of {r.parent} for {r.column}"


def _on_parents(table: str, r: Reference) -> str:
    """A row may move to another parent that is there; a parent goes after its rows, and keeps its key."""
    name = _name(table, r)
    left = f"FROM {table} WHERE {r.column} = ANY(ARRAY(SELECT {r.key} FROM gone)) LIMIT 5"
    keys = f"SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT {r.column} AS key {left}) shown"
    kept = f"{table} may refer to this row of {r.parent}, which keeps its {r.key}"
    return f"""
CREATE FUNCTION {name}_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({LOCK});
    IF NOT EXISTS (SELECT FROM {r.parent} WHERE {r.key} = NEW.{r.column}) THEN
        {_refuse(table, r, _no_parent(r), f"NEW.{r.column}")}
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER {name}_moved AFTER UPDATE OF {r.column} ON {table} FOR EACH ROW
    WHEN (NEW.{r.column} IS DISTINCT FROM OLD.{r.column} AND NEW.{r.column} IS NOT NULL)
    EXECUTE FUNCTION {name}_moved();
CREATE FUNCTION {name}_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock({LOCK});
    IF EXISTS (SELECT {left}) THEN
        {_refuse(table, r, f"rows of {table} refer to {r.parent}", keys)}
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER {name}_gone AFTER DELETE ON {r.parent} REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION {name}_gone();
CREATE FUNCTION {name}_rekeyed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    {_refuse(table, r, kept, f"OLD.{r.key}")}
END $$;
{keep_key(table, r)}"""


def keep_key(table: str, reference: Reference, when: str = "AFTER") -> str:
    """The trigger that refuses another key of a parent; it takes the place of one that is there.

    After an update: one before it would let PostgreSQL lock each row that is updated, with a record in its log.
    """
    name, key = _name(table, reference), reference.key
    return f"""CREATE OR REPLACE TRIGGER {name}_rekeyed {when} UPDATE OF {key} ON {reference.parent} FOR EACH ROW
    WHEN (NEW.{key} IS DISTINCT FROM OLD.{key}) EXECUTE FUNCTION {name}_rekeyed();"""
