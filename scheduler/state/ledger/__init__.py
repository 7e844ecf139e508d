"""Holds, charges and refunds of attempts."""
