"""Optimised count-mean sketches [Pan24]: hashing with randomised response."""
