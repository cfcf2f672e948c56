"""Queries for devices: joins, slots, uploads, reports, and the seats that a registrar draws."""
