"""Starting jobs: the mpirun wrapper, job scripts from templates, and the schedulers that take them."""
