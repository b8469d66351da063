"""Distributed data-parallel training of recurrent models on MPI, in 16 bits with FP32 master weights."""

__version__ = "0.1.0"
