"""The processes behind the web: planner, beat, and the transport of the broker."""
