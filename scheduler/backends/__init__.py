"""Backends: where the tasks of jobs really run."""
