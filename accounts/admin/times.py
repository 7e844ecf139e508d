"""Times in the texts of admin pages, in the zone of the person who reads them."""

from __future__ import annotations

import re
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from accounts.templatetags.ui import when
from infra.times_in_text import pieces

#: A tag, or an element whose text is not prose: what is typed into a form stays as it is.
_NOT_SHOWN: Final = re.compile(
    r"""(<!--.*?-->|<(script|style|textarea|title|option)\b.*?</\2\s*>|<(?:[^<>"']|"[^"]*"|'[^']*')*>)""",
    re.DOTALL,
)


def readable_times(request: HttpRequest, html: str) -> str:
    """The page with each time of its text in the reader's zone; attributes and form fields stay."""
    shown, end = [], 0
    for tag in _NOT_SHOWN.finditer(html):
        shown += [_in_zone(request, html[end : tag.start()]), tag[0]]
        end = tag.end()
    return "".join([*shown, _in_zone(request, html[end:])])


def _in_zone(request: HttpRequest, text: str) -> str:
    context: Any = {"request": request}
    return "".join(
        piece if isinstance(piece, str) else when(context, piece, "full") for piece in pieces(text)
    )


class ReadableTimes:
    """For admin pages that show sentences and JSON: no time is shown as it is stored."""

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return _when_rendered(request, super().changelist_view(request, *args, **kwargs))  # type: ignore[misc]

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return _when_rendered(request, super().changeform_view(request, *args, **kwargs))  # type: ignore[misc]

    def history_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return _when_rendered(request, super().history_view(request, *args, **kwargs))  # type: ignore[misc]


def _when_rendered(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    if isinstance(response, TemplateResponse):
        response.add_post_render_callback(lambda page: _show(request, page))
    return response


def _show(request: HttpRequest, page: HttpResponse) -> None:
    page.content = readable_times(request, page.content.decode()).encode()
