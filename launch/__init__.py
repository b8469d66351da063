"""Starting jobs: the mpirun wrapper. Only the standard library is used here."""
