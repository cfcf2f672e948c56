"""Rounds and their cohorts: their work, their ends, and how long they are kept."""
