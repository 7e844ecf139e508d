"""The moves of jobs along their life cycle, and what their ends decide."""
