"""`blindtally mechanisms`: what there is to ask by, what each promises and what it costs."""

from dataclasses import asdict, dataclass

from rich.text import Text

from blindtally.console.output import JsonOption, write_json
from blindtally.console.tables import fact_table, print_parts
from protocol.mechanisms.registry import REPORT_MECHANISMS

_SUM_GUARANTEE = "secure sum of a cohort; the sum itself is seen"
_CENTRAL_GUARANTEE = "central (epsilon, delta): of the sum with noise, else of what is shown"
_LOCAL_GUARANTEE = "epsilon or (epsilon, delta)-local DP"
_PURE_LOCAL_GUARANTEE = "epsilon-local DP, replacing the item"


@dataclass(frozen=True, slots=True)
class MechanismSummary:
    """A mechanism in three lines; d values, n devices, m rows."""

    what: str
    guarantee: str
    cost: str


CATALOGUE = {
    "tracked": MechanismSummary(
        "heavy hitters of any domain, known ones counted exactly",
        _SUM_GUARANTEE,
        "`words` a round: least",
    ),
    "adaptive-iblt": MechanismSummary(
        "heavy hitters, one table a round, nothing told to devices",
        _SUM_GUARANTEE,
        "`words` a round",
    ),
    "subsampled-iblt": MechanismSummary(
        "heavy hitters with one sampling threshold",
        _SUM_GUARANTEE,
        "`words` a round, 260 tables by theorem",
    ),
    "approximate-histogram": MechanismSummary(
        "how often each heavy item is held", _SUM_GUARANTEE, "`words` a round, tables and a sketch"
    ),
    "triehh": MechanismSummary(
        "heavy strings, found symbol by symbol in noise or samples",
        _CENTRAL_GUARANTEE,
        "`words` in every round",
    ),
    "hierarchical-histogram": MechanismSummary(
        "quantiles, ranges and ranks of numbers, in one round",
        _CENTRAL_GUARANTEE,
        "`words` a round: a number for every prefix",
    ),
    "count-median": MechanismSummary(
        "counts of a small domain; a baseline", _SUM_GUARANTEE, "`words` a round"
    ),
    "count-sketch": MechanismSummary(
        "counts of a small domain; a baseline", _SUM_GUARANTEE, "`words` a round"
    ),
    "krr": MechanismSummary(
        "counts of a few values, told themselves", _PURE_LOCAL_GUARANTEE, "log2 d bits"
    ),
    "ocms": MechanismSummary(
        "all counts by the paper's hashed sketch",
        _PURE_LOCAL_GUARANTEE,
        "about 2 log2 d + log2 m bits",
    ),
    "ocms-gf": MechanismSummary(
        "all counts by inner products; the one to take",
        _PURE_LOCAL_GUARANTEE,
        "about log2 d + log2 m bits",
    ),
    "ocms-mixture": MechanismSummary(
        "all counts, the least worst error in few bits",
        _PURE_LOCAL_GUARANTEE,
        "about log2 d + log2 m bits",
    ),
    "hadamard": MechanismSummary(
        "all counts in milliseconds; low epsilon", _PURE_LOCAL_GUARANTEE, "log2 d + 1 bits"
    ),
    "recursive-hadamard": MechanismSummary(
        "all counts; a baseline", _PURE_LOCAL_GUARANTEE, "log2 d + 1 bits"
    ),
    "olh": MechanismSummary(
        "all counts by a hash seed; a baseline", _PURE_LOCAL_GUARANTEE, "40 + log2 m bits"
    ),
    "apple-cms": MechanismSummary(
        "all counts by 2^16 hash functions; biased, a baseline",
        _PURE_LOCAL_GUARANTEE,
        "17 + log2 m bits",
    ),
    "subset-selection": MechanismSummary(
        "all counts, the least error there is", _PURE_LOCAL_GUARANTEE, "d bits"
    ),
    "rappor": MechanismSummary("all counts by a noisy unary code", _PURE_LOCAL_GUARANTEE, "d bits"),
    "jl-hh": MechanismSummary(
        "the best of 2^24 values, all asked for; reference",
        _LOCAL_GUARANTEE,
        "log2 m + 1 bits sampled, else m integers",
    ),
    "glps-hh": MechanismSummary(
        "heavy values below 2^64, read off bit by bit; reference",
        _LOCAL_GUARANTEE,
        "11 to 13 bits sampled, else 1,000 integers and more",
    ),
    "bucket-hh": MechanismSummary(
        "the one value below 2^64 that most hold; reference",
        _LOCAL_GUARANTEE,
        "10 to 12 bits sampled, else 456 integers and more",
    ),
    "prefix-extension": MechanismSummary(
        "heavy strings of any length; the one to take for them",
        _PURE_LOCAL_GUARANTEE,
        "8 bits and an oracle's",
    ),
}


_NAMES_BY_GUARANTEE = {
    guarantee: [name for name, entry in CATALOGUE.items() if entry.guarantee == guarantee]
    for guarantee in dict.fromkeys(entry.guarantee for entry in CATALOGUE.values())
}
_TITLES = {_SUM_GUARANTEE: "Secure sums of cohorts: the sums themselves are seen"} | {
    _CENTRAL_GUARANTEE: "Secure sums, central (epsilon, delta):\n"
    "of the sum with noise, else of what is shown"
}


def mechanisms(json_path: JsonOption = None) -> None:
    """List the mechanisms, each with its purpose, guarantee and cost.

    Example:
      blindtally mechanisms --json -
    """
    rows = [
        {"mechanism": name, "transport": _transport(name)} | asdict(entry)
        for name, entry in CATALOGUE.items()
    ]
    if json_path != "-":
        for guarantee, names in _NAMES_BY_GUARANTEE.items():
            told = {n: f"{CATALOGUE[n].what}\nsends {CATALOGUE[n].cost}" for n in names}
            title = _TITLES.get(guarantee, f"Reports, {guarantee}")
            print_parts(Text(title, "bold"), fact_table(told), "")
        print_parts("d: values, m: symbols or rows. docs/mechanisms.md has a section for each.")
    write_json(json_path, {"mechanisms": rows})


def _transport(name: str) -> str:
    return "report" if name in REPORT_MECHANISMS else "sum"
