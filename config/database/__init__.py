"""Django's PostgreSQL backend with the one checked way to a connection, whichever thread asks (decision 0025)."""
