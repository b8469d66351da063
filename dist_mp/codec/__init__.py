"""What a number is on the wire: NumPy references, compiled kernels, one table of codecs. No MPI, no TensorFlow."""
