"""Data files: bundled data sets and readers of a user's own."""
