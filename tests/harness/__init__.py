"""Tests that run under a real mpirun, or as a command line, with a hard time limit and no process left behind."""
