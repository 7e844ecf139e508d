"""What a shim makes of the journal and the status files of the shims before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scheduler.agent.protocol import NEVER_BEGAN
from scheduler.agent.shim.shim import Shim
from scheduler.agent.shim.task_store import TaskStore
from tests.support.agent_messages import a_record


def test_another_boot_ends_what_ran(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text(
        json.dumps({**a_record(boot_id="another"), "limit_seconds": None, "grace_seconds": 1}) + "\n"
    )

    later = Shim(tmp_path)
    later.recover()

    record = later.store.tasks["5-2"].record
    assert (record["state"], record["lost"]) == ("ended", True)
    assert record["text"] == "The end of the task was not seen: the machine was restarted."
    later.store.close()


def test_a_task_whose_guard_was_never_there_never_began(tmp_path: Path) -> None:
    """The shim was killed between writing the task down and forking its guard."""
    first = TaskStore(tmp_path)
    entry: Any = {
        "key": "5-2", "folder": str(tmp_path / "tasks/5-2"), "meta": {}, "limit_seconds": None, "grace_seconds": 1,
    }  # fmt: skip
    first.write_new(task for task, _ in first.add([entry]))
    first.close()
    later = Shim(tmp_path)

    later.recover()

    record = later.store.tasks["5-2"].record
    assert (record["state"], record["lost"], record["text"]) == ("ended", True, NEVER_BEGAN)
    later.store.close()
