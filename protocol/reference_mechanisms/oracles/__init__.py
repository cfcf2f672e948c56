"""Frequency oracles for comparison: others are better in bits, in time or in error."""
