"""The core runs where there is no Django, no clock and no dice."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted([*(ROOT / "scheduler" / "core").rglob("*.py"), *(ROOT / "quotas" / "core").rglob("*.py")])

#: Modules through which the world outside the arguments could reach a decision.
OUTSIDE = {
    "time",
    "random",
    "os",
    "socket",
    "pathlib",
    "subprocess",
    "threading",
    "asyncio",
    "logging",
    "secrets",
    "uuid",
}


def test_a_plan_is_made_in_a_process_where_django_is_blocked() -> None:
    code = (
        "import sys\n"
        "for name in ('django', 'celery', 'redis', 'psycopg'): sys.modules[name] = None\n"
        "from tests.support.builders import a_job, a_node, a_policy, a_snapshot\n"
        "from scheduler.core.cycle import plan_cycle\n"
        "import scheduler.core.snapshot.codec, scheduler.core.revalidate, scheduler.core.whatif.explain\n"
        "plan = plan_cycle(a_snapshot(nodes=[a_node('n1')], pending=[a_job('one')]), a_policy())\n"
        "print(len(plan.starts))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.stdout.strip(), done.stderr) == ("1", "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_but_the_arguments_reaches_a_decision(path: Path) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        )
    }

    assert not imported & OUTSIDE
    assert not re.search(r"(?<!\w)now\(", path.read_text()), "it asks a clock"
