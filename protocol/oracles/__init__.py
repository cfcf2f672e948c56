"""Frequency oracles under local differential privacy: report at random, vote, estimate.

`oracle.py` defines the common interface; each family of oracles is one file.
"""
