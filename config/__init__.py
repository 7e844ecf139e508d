"""Wiring only: settings, addresses, entry points, and `manage.py up`. No rule of the domain lives here."""
