"""Who waits for whom in the database, for tests that hold a lock on purpose."""

from __future__ import annotations

import threading

from django.db import connection, connections

from tests.support.agents import wait_for


class Apart(threading.Thread):
    """Does one thing in a thread with a connection of its own; what it raised comes out of `end`."""

    def __init__(self, do: object) -> None:
        super().__init__(daemon=True)
        self.do, self.error = do, None
        self.start()

    def run(self) -> None:
        try:
            self.do()
        except Exception as error:
            self.error = error
        finally:
            connections.close_all()

    def until_it_waits(self) -> None:
        """Until it waits for a lock that somebody else holds, or is done."""

        def waits() -> bool:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)"
                    " WHERE NOT granted AND datname = current_database()"
                )
                return bool(cursor.fetchone()[0])

        wait_for(lambda: waits() or not self.is_alive())

    def end(self) -> None:
        self.join(20)
        assert not self.is_alive(), "it still waits"
        if self.error is not None:
            raise self.error
