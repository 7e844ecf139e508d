"""Reads of limits, budgets, usage and fair share, for those who may see them."""
