"""Contract between clients and server: documents, events, phases, credentials and refusals."""
