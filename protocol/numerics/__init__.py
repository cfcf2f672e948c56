"""Array types, searches and primes, on numpy and, at first use, on scipy."""
