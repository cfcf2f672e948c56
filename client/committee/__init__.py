"""Registrars and members of committees, who poll a service for rounds that wait for them."""
