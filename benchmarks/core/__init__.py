"""The cores of the planner and of quotas, in memory: they need NumPy, and neither a database nor a process."""
