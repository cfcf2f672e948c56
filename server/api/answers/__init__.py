"""Answers of a study. They are from published results, so they cost no privacy."""
