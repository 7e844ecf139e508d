"""The API's routes of notifications and webhooks, under /api/v1/."""

from __future__ import annotations

from django.urls import path

from notifications.api import views

urlpatterns = [
    path("notifications", views.NotificationsView.as_view(), name="api-notifications"),
    path("notifications/read", views.AllReadView.as_view(), name="api-notifications-read"),
    path("notifications/preferences", views.PreferencesView.as_view(), name="api-notification-preferences"),
    path("notifications/<int:number>/read", views.ReadView.as_view(), name="api-notification-read"),
    path("notifications/<int:number>/unread", views.UnreadView.as_view(), name="api-notification-unread"),
    path("webhooks", views.WebhooksView.as_view(), name="api-webhooks"),
    path("webhooks/<int:number>", views.WebhookView.as_view(), name="api-webhook"),
    path("webhooks/<int:number>/rotate", views.RotateView.as_view(), name="api-webhook-rotate"),
    path("webhooks/<int:number>/test", views.TestView.as_view(), name="api-webhook-test"),
    path("webhooks/<int:number>/messages", views.MessagesView.as_view(), name="api-webhook-messages"),
    path(
        "webhooks/<int:number>/messages/<int:message>/redeliver",
        views.RedeliverView.as_view(),
        name="api-webhook-redeliver",
    ),
]
