"""Nodes, queues, reservations and settings of a cluster."""
