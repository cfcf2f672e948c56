"""Mechanisms whose counts are released with central differential privacy."""
