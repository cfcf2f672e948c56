"""Result of a simulation: a JSON document and tables, and the parts that simulations share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group

from blindtally.console.tables import Printable, result_table
from blindtally.simulate.scores import FoundItem
from protocol.privacy.events import PARTIES, DpEvent, LedgerEntry
from protocol.privacy.ledger import Ledger

MAX_LISTED_ITEMS = 1000  # heavy hitters in a JSON document of reports
_MAX_SHOWN_ITEMS = 20  # heavy hitters in a table


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A `document` to write, `tables` to print, and how far a study came that Ctrl-C stopped."""

    document: dict[str, Any]
    tables: Sequence[Printable]
    stopped_after: str | None = None


def heavy_hitter_table(hitters: Sequence[FoundItem]) -> Group:
    """Return the first found items as a table, each item as Python writes it."""
    rows = [
        (
            repr(hitter.item),
            f"{hitter.estimate:,.0f}",
            f"{hitter.standard_error:,.0f}",
            f"{hitter.true_count:,}",
        )
        for hitter in hitters[:_MAX_SHOWN_ITEMS]
    ]
    return result_table(["item"], ["estimate", "± s.e.", "true"], rows, "Heavy hitters")


def shown_share(hitters: Sequence[FoundItem]) -> str:
    """Return the number of found items that the table shows."""
    hidden = len(hitters) - _MAX_SHOWN_ITEMS
    return f"{_MAX_SHOWN_ITEMS} shown, {hidden:,} more found" if hidden > 0 else "all shown"


def epsilon_by_party(event: DpEvent, delta: float) -> dict[str, float | None]:
    """Return the epsilon of one study in each party's view; None where there is no bound."""
    ledger = ledger_of(event)
    return {party: ledger.epsilon(delta, party) for party in PARTIES}


def ledger_of(event: DpEvent) -> Ledger:
    return Ledger(entries=(LedgerEntry(name="simulation", event=event),))


def privacy_facts(epsilons: Mapping[str, float | None], delta: float) -> dict[str, str]:
    """Return the lines of a table of facts that show the epsilon of each party's view."""
    return {
        f"to {party}": "no bound" if epsilon is None else f"epsilon {epsilon:.4g}, delta {delta:g}"
        for party, epsilon in epsilons.items()
    }
