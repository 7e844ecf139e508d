"""A plan written to the database, with what is refused."""
