"""The rows of limits."""

from quotas.models.quota import Provider, Quota, QuotaResource

__all__ = ["Provider", "Quota", "QuotaResource"]
