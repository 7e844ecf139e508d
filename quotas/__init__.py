"""How much: limits, budgets, the ledger and fair share."""
