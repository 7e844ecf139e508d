"""The exception handler of the API: one audit row for each right that was refused, then the problem."""

from __future__ import annotations

import logging
from typing import Any

from rest_framework.response import Response

from accounts.services import audit
from infra.api import problems

log = logging.getLogger(__name__)


def handle_exception(error: Exception, context: dict[str, Any]) -> Response:
    """What Django REST framework calls for an error that a view raised."""
    _record_refusal(error, context.get("request"))
    return problems.handle_exception(error, context)


def _record_refusal(error: Exception, request: Any) -> None:
    """Write the audit row of a refused right. A row that cannot be written must not turn a 403 into a 500."""
    known = problems.known_error(error)
    if known is None or known.refused is None:
        return
    user = getattr(request, "user", None) if known.status != 401 else None
    try:
        audit.record_refusal(known, by=user)
    except Exception:
        log.exception("denial_not_written", extra={"request_id": problems.request_id(request)})
