"""Sixteen-bit training: which type, the loss scale, the FP32 master weights."""
