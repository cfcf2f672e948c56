"""Mechanisms in which each device sends one locally private report."""
