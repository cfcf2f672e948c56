"""Console output: tables, progress, errors and JSON."""
