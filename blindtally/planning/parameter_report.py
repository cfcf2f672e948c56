"""Report of a secure sum's parameters, with their reasons and costs, and alternatives."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from itertools import chain, islice
from typing import Any, Final, TypeAlias

from rich.table import Table
from rich.text import Text

from blindtally.console.terminal import Terminal
from blindtally.planning.sum_costs import SumCost
from secagg.errors import InfeasibleError
from secagg.keys import SIGNATURE_BYTES
from secagg.parameters import Assumptions, choose_parameters
from secagg.seating import max_colluders

MAX_DEVICES: Final = 100_000  # as in a study's terms
_WORD_BYTES: Final = 4  # of a vector
_RATE_STEP: Final = 0.05  # between two rates that are tried instead of an infeasible one


def feasible_alternatives(n: int, assumptions: Assumptions) -> list[str]:
    """Return options each of which alone would make the cohort feasible."""
    a, options = assumptions, []
    tried: list[tuple[str, Iterable[tuple[str, int, Assumptions]]]] = [
        ("--dropout", ((f"{x:g}", n, replace(a, dropout=x)) for x in _lower_rates(a.dropout))),
        ("--corrupt", ((f"{x:g}", n, replace(a, corrupt=x)) for x in _lower_rates(a.corrupt))),
        ("--devices", ((str(m), m, a) for m in (n << i for i in range(1, 7)) if m <= MAX_DEVICES)),
        ("--devices", ((str(m), m, a) for m in (n >> i for i in range(1, 7)) if m >= 2)),
    ]
    for option, values in tried:
        feasible = (value for value, m, other in values if _is_feasible(m, other))
        options += [f"{option} {value}" for value in islice(feasible, 1)]
    return options


def _lower_rates(rate: float) -> list[float]:
    steps = (round(step * _RATE_STEP, 2) for step in range(int(rate / _RATE_STEP), -1, -1))
    return [lower for lower in steps if lower < rate]


def _is_feasible(n: int, assumptions: Assumptions) -> bool:
    try:
        choose_parameters(n, assumptions)
    except InfeasibleError:
        return False
    return True


def as_json(cost: SumCost, words: int, cohorts: int = 1) -> dict[str, Any]:
    """Return the JSON document: assumptions, parameters such as `k` and `t`, and costs."""
    chosen, assumptions = cost.parameters, cost.assumptions
    return {
        "devices": chosen.n,
        **asdict(assumptions),
        "registrar": cost.has_registrar,
        "k": chosen.holders,
        "t": chosen.threshold,
        "t_max": chosen.threshold + chosen.slack,
        "spot_checks": chosen.spot_checks,
        "complete": chosen.is_complete,
        "quorum": assumptions.quorum(chosen.n),
        "cohorts": cohorts,
        "colluders": _colluders(cost, cohorts),
        "messages": cost.message_count,
        "bytes_up": cost.upload_bytes,
        "bytes_of_signatures": cost.message_count * SIGNATURE_BYTES,
        "bytes_down": cost.download_bytes,
        "words": words,
        "vector_bytes": words * _WORD_BYTES,
    }


# Name and note of each message in the table.
_MESSAGES: Final = {
    "join": ("join", "identity and keys, as JSON"),
    "shares": ("key shares", "of its mask key and a seed, encrypted for each holder"),
    "complaints": ("complaints", "about shares that it cannot use; here none"),
    "input": ("masked input", "its signature; the vector comes on top"),
    "confirmation": ("confirmation", "its signature under the list of survivors"),
    "reveal": ("unmasking", "a share per dealer, and its own"),
    "roster": ("roster", "identity and keys of all participants"),
    "received": ("received", "the shares that it holds, still encrypted"),
    "dealers": ("dealers", "participants that shared, with their commitments"),
    "survivors": ("survivors", "participants in the sum, as JSON"),
    "confirmations": ("confirmations", "signatures of all survivors under that list"),
    "inputs": ("signed inputs", "signatures of the vectors whose shares it holds"),
}
TableRow: TypeAlias = tuple[str, str, str]


def _colluders(cost: SumCost, cohorts: int) -> int:
    """Return the number of devices of a round that may work for the server."""
    n, assumptions = cost.parameters.n, cost.assumptions
    if not cost.has_registrar:
        return assumptions.max_corrupt(n)
    return max_colluders(n * cohorts, cohorts, assumptions)


def show_parameters(cost: SumCost, words: int, cohorts: int) -> None:
    """Print the parameters of a pairwise sum."""
    vector = "vector", f"{words * _WORD_BYTES:,} B", f"of {words:,} 32-bit words, from each device"
    show_rows(chain(_parameter_rows(cost, cohorts), _byte_rows(cost), [vector]))


def show_rows(rows: Iterable[TableRow]) -> None:
    """Print a table of names, values and reasons, 80 columns wide."""
    table = Table(show_header=False, box=None, pad_edge=False, width=80)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*map(Text, row))
    Terminal().print(table)


def _parameter_rows(cost: SumCost, cohorts: int) -> Iterator[TableRow]:
    chosen, a = cost.parameters, cost.assumptions
    corrupt, dropouts = a.max_corrupt(chosen.n), a.max_dropouts(chosen.n)
    reason = "for shares and masks: the fewest for which a threshold t is secure"
    if chosen.is_complete:
        reason = "every device holds shares of all others: fewer are not secure"
    yield "holders k", str(chosen.holders), reason
    reason = (
        f"no device has this many corrupt holders ({corrupt} are corrupt), except with probability "
        f"2^-{a.sigma}; each has this many that survive ({dropouts} may drop out), except with "
        f"probability 2^-{a.eta}"
    )
    yield "threshold t", str(chosen.threshold), reason
    reason = "signatures per device: the server cannot show two lists of survivors"
    yield "spot checks", str(chosen.spot_checks), reason
    yield "quorum", str(a.quorum(chosen.n)), "devices that each phase needs"
    safe, chosen_by_server = _colluders(cost, cohorts), a.max_corrupt(chosen.n)
    reason = "in the whole study: the server chooses which devices share a cohort"
    if cost.has_registrar:
        reason = f"of the {chosen.n * cohorts:,} devices of a round"
        if cohorts > 1:
            reason += (
                f", divided at random by the registrar (fails with probability 2^-{a.sigma}); "
                f"{chosen_by_server:,} if the server divided them"
            )
    yield "colluders", f"{safe:,}", reason


def _byte_rows(cost: SumCost) -> Iterator[TableRow]:
    signatures = cost.message_count * SIGNATURE_BYTES
    yield "messages", str(cost.message_count), f"per device, with {signatures} B of signatures"
    for name, sizes, note in (
        ("bytes up", cost.upload_bytes, "from each device, without its vector"),
        ("bytes down", cost.download_bytes, "to each device"),
    ):
        yield name, f"{sum(sizes.values()):,} B", note
        for message, size in sizes.items():
            label, meaning = _MESSAGES[message]
            yield f"  {label}", f"{size:,} B", meaning
