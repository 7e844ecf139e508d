"""Where the live socket is."""

from __future__ import annotations

from django.urls import path

from scheduler.realtime.consumers import LiveConsumer

websocket_urlpatterns = [path("ws/live/", LiveConsumer())]  # type: ignore[arg-type]  # an ASGI application
