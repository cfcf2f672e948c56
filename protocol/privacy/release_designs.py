"""Designs of a release of counts, as a plan compares them: coins, noise, or both."""

from dataclasses import dataclass

from protocol.privacy.release import ReleaseMode


@dataclass(frozen=True, slots=True)
class InvitedDesign:
    """A design in which each user joins with `probability`, by its own coin.

    The `seats` suffice for all that join except with probability 1e-20. Each sends `vector_bytes`
    for 100 prefixes; `saved_bytes` are those of all users that do not join. The noise of deviation
    `sigma` keeps epsilon against the server, which sees who joins, as devices do on the roster. An
    epsilon without bound is None.
    """

    probability: float
    expected_participants: int
    seats: int
    vector_bytes: int
    saved_bytes: int
    sigma: float
    epsilon_server: float | None
    epsilon_devices: float | None


@dataclass(frozen=True, slots=True)
class ReleaseDesign:
    """One way to release counts.

    `m` users vote on average, `sigma` is the deviation of the noise in all cohorts together, and a
    prefix of `shown_share` of all users is shown about half the time. `relative_error` is the
    standard error of a prefix that one user in a hundred has; `vector_bytes` are those of 100
    prefixes of 27 symbols. Epsilons are exact except for the closed forms, which are None without a
    bound. `invitation` is None if it would save nothing.
    """

    mode: ReleaseMode
    theta: int
    m: int
    probability: float
    sigma: float
    shown_share: float
    relative_error: float
    vector_bytes: int
    epsilon: float
    epsilon_replace_one: float
    epsilon_server: float | None
    epsilon_kl: float | None
    epsilon_note: float | None
    invitation: InvitedDesign | None
