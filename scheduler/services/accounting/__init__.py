"""What jobs use, charge and leave of quotas and budgets."""
