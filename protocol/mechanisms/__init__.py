"""Mechanisms: algorithms that turn questions into plans, device data into messages, and answers.

`registry` has all mechanisms by name. Each family has a folder: `iblt` (sampled tables), `tracked`
(exact counters for known items), `central` (central differential privacy) and `reports` (local
differential privacy). `protocol/reference_mechanisms` has those for comparison.
"""
