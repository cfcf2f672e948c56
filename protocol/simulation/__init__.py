"""Simulation of whole studies in memory; read `study` first."""
