"""The command line of a person: `python -m muster`. It needs the standard library alone, and talks to the API."""
