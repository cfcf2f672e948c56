"""Frequency oracles under local differential privacy: perturb, support, estimate.

`oracle.py` says what all have in common; a family is a file.
"""
