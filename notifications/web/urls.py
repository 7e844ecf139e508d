"""Addresses of the pages about notifications and webhooks."""

from __future__ import annotations

from django.urls import path

from notifications.web import inbox, webhooks

urlpatterns = [
    path("notifications/", inbox.show, name="notifications"),
    path("notifications/bell/", inbox.bell, name="bell"),
    path("notifications/read/", inbox.read_all, name="notifications-read"),
    path("notifications/<int:notification_id>/read/", inbox.read, name="notification-read"),
    path("notifications/preferences/", inbox.preferences, name="notification-preferences"),
    path("webhooks/", webhooks.index, name="webhooks"),
    path("webhooks/<int:webhook_id>/", webhooks.show, name="webhook"),
    path("webhooks/<int:webhook_id>/do/<str:verb>/", webhooks.do, name="webhook-verb"),
    path(
        "webhooks/<int:webhook_id>/messages/<int:message_id>/redeliver/",
        webhooks.send_again,
        name="webhook-redeliver",
    ),
]
