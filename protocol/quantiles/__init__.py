"""Distributions of values: trees of prefix counts, ranks and quantiles."""
