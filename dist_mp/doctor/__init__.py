"""What the machine, the MPI and the launcher of this environment are, and whether they fit together."""
