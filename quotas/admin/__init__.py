"""The admin pages of limits."""

from quotas.admin import ledger, limits, provider_state

__all__ = ["ledger", "limits", "provider_state"]
