"""The rows of limits, budgets, and what was used."""

from quotas.models.alert import Alert, AlertKind, Notice
from quotas.models.budget import Budget, BudgetPeriod, BudgetResource, OnSpent
from quotas.models.drift import DriftFinding, DriftKind
from quotas.models.grant import CLOSED, OPEN, Grant, GrantState
from quotas.models.ledger import LedgerEntry, LedgerRollUp, PriceRow
from quotas.models.provider_start import AllocationState, ProviderAllocation, RefusedStart
from quotas.models.provider_state import ProviderState, ProviderStatus
from quotas.models.quota import (
    Provider,
    Quota,
    QuotaResource,
    named_providers,
    provider_choices,
    provider_label,
)
from quotas.models.share import FairShareRules, ShareUsage

__all__ = [
    "CLOSED",
    "OPEN",
    "Alert",
    "AlertKind",
    "AllocationState",
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
    "ProviderAllocation",
    "ProviderState",
    "ProviderStatus",
    "Quota",
    "QuotaResource",
    "FairShareRules",
    "RefusedStart",
    "ShareUsage",
    "named_providers",
    "provider_choices",
    "provider_label",
]
