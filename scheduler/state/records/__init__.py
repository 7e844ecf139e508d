"""Recorded cycles and forecasts."""
