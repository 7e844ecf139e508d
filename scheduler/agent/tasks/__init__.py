"""The tasks of the agent: from an assignment to the shim's order, and from the shim's record to a report."""
