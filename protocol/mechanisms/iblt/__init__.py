"""Mechanisms that insert sampled items into invertible Bloom lookup tables."""
