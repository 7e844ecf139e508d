"""One planner a cluster: its lease, who holds it, and whether the planner is alive."""
