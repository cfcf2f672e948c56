"""Notification of waiting clients: long polls, event streams, other processes."""
