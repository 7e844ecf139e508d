"""What accounts does by the clock."""

from __future__ import annotations

import structlog
from celery import shared_task

from accounts.services import audit_check

log = structlog.get_logger(__name__)


@shared_task
def verify_audit() -> None:
    """Verify the audit chains; a broken one shows on the audit page, in the metrics and in the log."""
    check, _ = audit_check.verify_and_keep()
    if check.ok:
        log.info("audit_chain_intact", rows=check.rows)
    else:
        log.error("audit_chain_broken", problem=check.problem)


@shared_task
def checkpoint_audit() -> None:
    """Write the heads of the audit chains outside the database, once they fit what was written there before."""
    check = audit_check.look_at_heads()
    if check is not None:
        log.error("audit_chain_broken", problem=check.problem)
