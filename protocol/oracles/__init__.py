"""Local-DP oracles: perturb on the device, aggregate by addition, estimate or identify."""
