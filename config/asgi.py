"""The ASGI entry point: HTTP for Django, websockets for live pages, and doors for the API and for agents."""

from __future__ import annotations

import os

import django
from channels.routing import ProtocolTypeRouter, URLRouter

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.production")
django.setup(set_prefix=False)  # before anything that imports models

from config.http.api_server import ApiDoor, PageDoor  # noqa: E402
from config.http.front_door import FrontDoor  # noqa: E402
from config.http.probes import ProbeDoor  # noqa: E402
from config.http.submit_door import SubmitDoor  # noqa: E402
from scheduler.api.agent.door import AgentDoor  # noqa: E402
from scheduler.realtime.auth import BrowserOrProgram  # noqa: E402
from scheduler.realtime.routing import websocket_urlpatterns  # noqa: E402

application = ProbeDoor(
    FrontDoor(
        AgentDoor(
            ProtocolTypeRouter(
                {
                    "http": SubmitDoor(ApiDoor(PageDoor())),
                    "websocket": BrowserOrProgram(URLRouter(websocket_urlpatterns)),
                }
            )
        )
    )
)
