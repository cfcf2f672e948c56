"""The paths under /v1: thin functions that read a request, ask the store, and answer."""
