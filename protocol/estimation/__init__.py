"""Estimated totals of items from counts, samples and sketches, with their errors."""
