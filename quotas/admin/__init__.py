"""The admin pages of limits."""

from quotas.admin import limits

__all__ = ["limits"]
