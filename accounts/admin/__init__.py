"""The admin pages of people, projects, tokens and the audit trail."""

from accounts.admin import audit, auth, people, projects

__all__ = ["audit", "auth", "people", "projects"]
