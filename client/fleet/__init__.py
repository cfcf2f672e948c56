"""Fleets: many simulated devices that use a real service."""
