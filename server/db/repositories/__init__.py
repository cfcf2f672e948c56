"""Repositories: one method for each query, one transaction for each method."""
