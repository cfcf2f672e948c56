"""Policies of devices that take part in small studies without a registrar, and their refusals."""

from typing import Any

import pytest

from protocol.device_policy.policy import Policy, PolicyError


def trusting_policy(**limits: Any) -> Policy:
    """Return a policy with `limits` that accepts the server's identities, and any mechanism."""
    return Policy(**{"trust_server_identities": True, "accept_exact_estimates": True} | limits)


def refused_for(limit: str, reason: str | None = None) -> pytest.RaisesExc[PolicyError]:
    """Expect a refusal that names `limit`; its text matches `reason`, a regular expression."""
    return pytest.raises(PolicyError, match=reason, check=lambda error: error.limit == limit)
