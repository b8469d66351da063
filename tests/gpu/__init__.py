"""Checks that need a GPU; in CI they run in Numba's simulator."""
