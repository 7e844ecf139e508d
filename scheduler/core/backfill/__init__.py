"""Later jobs into gaps: availability over time, expected starts, gang reservations."""
