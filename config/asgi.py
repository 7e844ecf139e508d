"""The ASGI entry point: HTTP for Django, websockets for the live pages."""

from __future__ import annotations

import os
from importlib.util import find_spec

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.production")
http = get_asgi_application()  # before anything that imports models

if find_spec("scheduler.realtime.routing"):
    from scheduler.realtime.routing import websocket_urlpatterns
else:
    websocket_urlpatterns = []

application = ProtocolTypeRouter(
    {
        "http": http,
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
