"""Invertible Bloom lookup tables: linear sketches that list their keys and values."""
