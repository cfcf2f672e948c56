"""Linear sketches: insert, merge by addition, recover."""
