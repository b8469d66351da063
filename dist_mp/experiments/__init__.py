"""Benchmarks and scaling experiments."""
