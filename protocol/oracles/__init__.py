"""Frequency oracles under local differential privacy: report at random, vote, estimate."""
