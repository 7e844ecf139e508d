"""Amounts in the units of other systems."""
