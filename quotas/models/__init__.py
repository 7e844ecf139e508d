"""The rows of limits, budgets, and what was used."""

from quotas.models.alert import Alert, AlertKind, Notice
from quotas.models.budget import Budget, BudgetPeriod, BudgetResource, OnSpent
from quotas.models.drift import DriftFinding, DriftKind
from quotas.models.grant import CLOSED, OPEN, Grant, GrantState
from quotas.models.ledger import LedgerEntry, LedgerRollUp, PriceRow
from quotas.models.provider_state import ProviderState, ProviderStatus
from quotas.models.quota import Provider, Quota, QuotaResource
from quotas.models.share import FairShareRules, ShareUsage

__all__ = [
    "CLOSED",
    "OPEN",
    "Alert",
    "AlertKind",
    "Budget",
    "BudgetPeriod",
    "BudgetResource",
    "DriftFinding",
    "DriftKind",
    "Grant",
    "GrantState",
    "LedgerEntry",
    "LedgerRollUp",
    "Notice",
    "OnSpent",
    "PriceRow",
    "Provider",
    "ProviderState",
    "ProviderStatus",
    "Quota",
    "QuotaResource",
    "FairShareRules",
    "ShareUsage",
]
