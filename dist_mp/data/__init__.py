"""Data sets as windows of time steps: formats, generators, shards and batches. NumPy only: no MPI, no TensorFlow."""
