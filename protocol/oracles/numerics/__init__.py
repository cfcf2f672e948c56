"""Numerical methods of the oracles: finite fields, transforms, kernels and tail bounds."""
