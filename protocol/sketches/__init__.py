"""Linear sketches: insert, merge by addition, recover.

A sketch holds keys and values in finite rings; mechanisms define their meaning.
"""
