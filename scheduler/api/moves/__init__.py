"""The door of moves: jobs that are migrated, nodes that are drained, and rebalancing."""
