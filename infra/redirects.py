"""Where somebody may be led to after a door: paths of this site and nothing else."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.http import url_has_allowed_host_and_scheme


def local_target(request: HttpRequest, text: str, otherwise: str) -> str:
    """The path on this site that somebody is to be led to; never another site, nor the name of a view."""
    fine = text.startswith("/") and url_has_allowed_host_and_scheme(
        text, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return text if fine else otherwise
