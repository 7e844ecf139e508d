"""The end of attempts: what they held is released and charged."""
