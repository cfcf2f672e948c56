"""Orchestration of rounds: closes phases that are due, sums cohorts and decodes rounds."""
