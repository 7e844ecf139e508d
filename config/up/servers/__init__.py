"""The servers that a portal brings along: PostgreSQL with its roles, and Valkey, in the state folder."""
