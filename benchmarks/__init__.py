"""Benchmarks: what Muster costs, measured and kept beside its bars."""
