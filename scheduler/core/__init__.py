"""The pure core: a snapshot in, a plan out; no Django, no clock, no dice."""
