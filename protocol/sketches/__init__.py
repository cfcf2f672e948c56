"""Linear sketches: insert, merge by addition, recover.

A sketch knows keys and values in finite rings; what they mean is the mechanisms' affair.
"""
