"""The admin pages of people, projects, tokens and the audit trail."""

from accounts.admin import audit, doors, people, projects

__all__ = ["audit", "doors", "people", "projects"]
