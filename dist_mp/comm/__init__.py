"""MPI: the world of ranks, shared memory of a node, transfers of bytes. The only package that imports mpi4py."""
