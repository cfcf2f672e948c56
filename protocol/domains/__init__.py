"""Domains: how the items of a question become integer keys and back."""
