"""Mechanisms of the papers for comparison: others of this package find more with fewer words.

They are used by `simulate`, by the figures of `paper` and over HTTP. No form offers them, and no
planner recommends them. The registry loads them as it loads plug-ins of other distributions.
"""
