"""What a planning cycle sees: the snapshot, its request classes, and how both are recorded."""
