"""Jobs that go on elsewhere: drains with a deadline, migration of one job, and rebalancing."""
