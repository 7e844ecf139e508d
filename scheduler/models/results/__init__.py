"""What jobs leave behind."""
