"""The ASGI entry point: HTTP for Django, websockets for live pages, and doors for the API and for agents."""

from __future__ import annotations

import os

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.production")
http = get_asgi_application()  # before anything that imports models

from config.api_door import ApiDoor  # noqa: E402
from config.front_door import FrontDoor  # noqa: E402
from scheduler.api.agent import AgentDoor  # noqa: E402
from scheduler.realtime.auth import BrowserOrProgram  # noqa: E402
from scheduler.realtime.routing import websocket_urlpatterns  # noqa: E402

application = FrontDoor(
    AgentDoor(
        ProtocolTypeRouter(
            {"http": ApiDoor(http), "websocket": BrowserOrProgram(URLRouter(websocket_urlpatterns))}
        )
    )
)
