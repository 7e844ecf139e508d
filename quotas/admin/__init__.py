"""The admin pages of limits."""

from quotas.admin import ledger, limits

__all__ = ["ledger", "limits"]
