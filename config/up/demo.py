"""What `manage.py up` prints about the demo accounts."""

from __future__ import annotations

# Name and what it is for; `seed_demo` makes them, and gives each the password NAME-demo.
SIGN_INS = (
    ("admin", "everything, and /admin/"),
    ("operator", "nodes and queues"),
    ("auditor", "the audit log"),
    ("alice", "leads project Vision"),
    ("bob", "leads Genomics, member of Vision"),
    ("carol", "member of Genomics"),
)


def sign_in_lines() -> list[str]:
    """A small table of names and passwords, with what makes it harmless."""
    lines = [f"  {name:10} {name + '-demo':16} {what}" for name, what in SIGN_INS]
    return [
        "Demo accounts (name, password), which work from this machine only:",
        *lines,
        "",
        "The nodes are this machine under several names; the GPUs of node-3 and node-4 are simulated,",
        "the jobs are real processes.",
        "",
    ]
