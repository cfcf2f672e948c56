"""Policies of devices that take part in small studies without a registrar."""

from typing import Any

from client.device.policy import Policy


def trusting_policy(**limits: Any) -> Policy:
    """Return a policy with `limits` that accepts the identities of the server."""
    return Policy(**{"trust_server_identities": True} | limits)
