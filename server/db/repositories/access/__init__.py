"""Credentials, enrolments, seats and committees."""
