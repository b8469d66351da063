"""Layers and models: TensorFlow, no MPI."""
