"""Array types, searches, finite fields and tail bounds, on numpy and, at first use, on scipy."""
