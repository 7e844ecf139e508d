"""The admin pages of people, projects, tokens and the audit trail."""

from accounts.admin import audit, circuits, login_views, people, projects

__all__ = ["audit", "circuits", "login_views", "people", "projects"]
