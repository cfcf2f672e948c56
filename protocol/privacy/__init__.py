"""Central differential privacy: noise that devices share, and the accounting of releases.

Devices draw noise and account for nothing: `noise` imports neither SciPy nor dp-accounting.
"""
