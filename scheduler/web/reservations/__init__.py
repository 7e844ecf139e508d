"""Pages of reservations."""
