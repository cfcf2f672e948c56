"""Persistence: engines, tables, migrations and repositories."""
