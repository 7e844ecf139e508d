"""Scheduler profiles with their versions, and shadow runs of drafts."""
