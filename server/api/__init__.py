"""Routes under /v1: each reads a request, calls a repository, and returns the answer."""
