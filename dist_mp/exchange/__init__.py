"""Averaging gradients over the ranks: buckets, the algorithms, host calls in the graph."""
