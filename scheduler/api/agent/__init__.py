"""The door for node agents."""
