"""Budget of devices: what their reports to all studies have spent, a row for each device."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from sqlalchemy import Connection, Table, bindparam, select, update

from protocol.api.messages import ProblemType
from server.db.group_commit import PreparedInsert
from server.db.schema import DeviceSpendingRow
from server.errors import ProblemError

_SPENDING = cast("Table", DeviceSpendingRow.__table__)
_LOCKED = (
    select(_SPENDING.c.identity, _SPENDING.c.epsilon, _SPENDING.c.delta)
    .where(_SPENDING.c.identity.in_(bindparam("identities")))
    .order_by(_SPENDING.c.identity)  # two groups lock several rows in one order
    .with_for_update()
)
_INSERT = PreparedInsert(DeviceSpendingRow)
_UPDATE = (
    update(_SPENDING)
    .where(_SPENDING.c.identity == bindparam("device"))
    .values(epsilon=bindparam("new_epsilon"), delta=bindparam("new_delta"))
)


@dataclass(frozen=True, slots=True)
class ReportCost:
    """Privacy cost of a report, and the budget of its device for all studies."""

    epsilon: float
    delta: float
    max_epsilon: float
    max_delta: float

    def check(self, epsilon: float, delta: float) -> None:
        """Raise ProblemError if a device that has spent this much cannot afford the report."""
        for name, spent, cost, budget in (
            ("epsilon", epsilon, self.epsilon, self.max_epsilon),
            ("delta", delta, self.delta, self.max_delta),
        ):
            if not spent + cost <= budget * (1 + 1e-9):
                detail = f"this device has spent {name} {spent:g} of {budget:g}"
                raise ProblemError(ProblemType.BUDGET_SPENT, f"{detail}: {cost:g} more is too much")


@dataclass(slots=True)
class _Spending:
    """Epsilon and delta that a device has spent; `is_new`: it has no row yet."""

    epsilon: float = 0.0
    delta: float = 0.0
    is_new: bool = True
    is_changed: bool = False


class LockedSpending:
    """Spending of devices in one transaction, which has locked their rows."""

    def __init__(self, connection: Connection, identities: Collection[str]) -> None:
        self._connection = connection
        rows = connection.execute(_LOCKED, {"identities": [*identities]})
        self._devices = {identity: _Spending() for identity in sorted(identities)}
        for row in rows:
            self._devices[row.identity] = _Spending(row.epsilon, row.delta, is_new=False)

    def charge(self, identity: str, cost: ReportCost) -> None:
        """Charge a device for a report; raises ProblemError if it cannot afford it."""
        device = self._devices[identity]
        cost.check(device.epsilon, device.delta)
        device.epsilon += cost.epsilon
        device.delta += cost.delta
        device.is_changed = True

    def store(self) -> None:
        """Store what was charged.

        Raises:
            IntegrityError: if another transaction has inserted the row of a device meanwhile.
        """
        changed = [(name, device) for name, device in self._devices.items() if device.is_changed]
        new = [
            {"identity": name, "epsilon": device.epsilon, "delta": device.delta}
            for name, device in changed
            if device.is_new
        ]
        known = [
            {"device": name, "new_epsilon": device.epsilon, "new_delta": device.delta}
            for name, device in changed
            if not device.is_new
        ]
        if new:  # before the others: a group that waits for these rows has changed none
            _INSERT(self._connection, new)
        if known:
            self._connection.execute(_UPDATE, known)
