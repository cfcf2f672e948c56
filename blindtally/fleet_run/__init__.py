"""Runs of a study by simulated devices, for the commands `fleet` and `demo`."""
