"""`blindtally mechanisms`: what there is to ask by, what each promises and what it costs."""

from dataclasses import asdict, dataclass

from rich.text import Text

from blindtally.output import Json, write_json
from blindtally.tables import facts, show
from protocol.mechanisms import REPORTING

_SUM = "secure sum of a cohort; the sum itself is seen"
_CENTRAL = "central (epsilon, delta): of the sum with noise, else of what is shown"
_LOCAL = "epsilon or (epsilon, delta)-local DP"
_PURE = "epsilon-local DP, replacing the item"


@dataclass(frozen=True, slots=True)
class Entry:
    """A mechanism in three lines; d values, n devices, m rows."""

    what: str
    guarantee: str
    cost: str


CATALOGUE = {
    "tracked": Entry(
        "heavy hitters of any domain, known ones counted exactly", _SUM, "`words` a round: least"
    ),
    "adaptive-iblt": Entry(
        "heavy hitters, one table a round, nothing told to devices", _SUM, "`words` a round"
    ),
    "subsampled-iblt": Entry(
        "heavy hitters with one sampling threshold", _SUM, "`words` a round, 260 tables by theorem"
    ),
    "approximate-histogram": Entry(
        "how often each heavy item is held", _SUM, "`words` a round, tables and a sketch"
    ),
    "triehh": Entry(
        "heavy strings, found symbol by symbol in noise or samples",
        _CENTRAL,
        "`words` in every round",
    ),
    "hierarchical-histogram": Entry(
        "quantiles, ranges and ranks of numbers, in one round",
        _CENTRAL,
        "`words` a round: a number for every prefix",
    ),
    "count-median": Entry("counts of a small domain; a baseline", _SUM, "`words` a round"),
    "count-sketch": Entry("counts of a small domain; a baseline", _SUM, "`words` a round"),
    "krr": Entry("counts of a few values, told themselves", _PURE, "log2 d bits"),
    "ocms": Entry("all counts by the paper's hashed sketch", _PURE, "about 2 log2 d + log2 m bits"),
    "ocms-gf": Entry(
        "all counts by inner products; the one to take", _PURE, "about log2 d + log2 m bits"
    ),
    "ocms-mixture": Entry(
        "all counts, the least worst error in few bits", _PURE, "about log2 d + log2 m bits"
    ),
    "hadamard": Entry("all counts in milliseconds; low epsilon", _PURE, "log2 d + 1 bits"),
    "recursive-hadamard": Entry("all counts; a baseline", _PURE, "log2 d + 1 bits"),
    "olh": Entry("all counts by a hash seed; a baseline", _PURE, "40 + log2 m bits"),
    "apple-cms": Entry(
        "all counts by 2^16 hash functions; biased, a baseline", _PURE, "17 + log2 m bits"
    ),
    "subset-selection": Entry("all counts, the least error there is", _PURE, "d bits"),
    "rappor": Entry("all counts by a noisy unary code", _PURE, "d bits"),
    "jl-hh": Entry(
        "the best of 2^24 values, all asked for; reference",
        _LOCAL,
        "log2 m + 1 bits sampled, else m integers",
    ),
    "glps-hh": Entry(
        "heavy values below 2^64, read off bit by bit; reference",
        _LOCAL,
        "11 to 13 bits sampled, else 1,000 integers and more",
    ),
    "bucket-hh": Entry(
        "the one value below 2^64 that most hold; reference",
        _LOCAL,
        "10 to 12 bits sampled, else 456 integers and more",
    ),
    "prefix-extension": Entry(
        "heavy strings of any length; the one to take for them", _PURE, "8 bits and an oracle's"
    ),
}


_GROUPS = {
    guarantee: [name for name, entry in CATALOGUE.items() if entry.guarantee == guarantee]
    for guarantee in dict.fromkeys(entry.guarantee for entry in CATALOGUE.values())
}
_TITLES = {_SUM: "Secure sums of cohorts: the sums themselves are seen"} | {
    _CENTRAL: "Secure sums, central (epsilon, delta):\nof the sum with noise, else of what is shown"
}


def mechanisms(json_path: Json = None) -> None:
    """List the mechanisms, each with what it is for, what it promises and what it costs.

    Example:
      blindtally mechanisms --json -
    """
    rows = [
        {"mechanism": name, "transport": _transport(name)} | asdict(entry)
        for name, entry in CATALOGUE.items()
    ]
    if json_path != "-":
        for guarantee, names in _GROUPS.items():
            told = {n: f"{CATALOGUE[n].what}\nsends {CATALOGUE[n].cost}" for n in names}
            title = _TITLES.get(guarantee, f"Reports, {guarantee}")
            show(Text(title, "bold"), facts(told), "")
        show("d: values, m: symbols or rows. docs/mechanisms.md has a section for each.")
    write_json(json_path, {"mechanisms": rows})


def _transport(name: str) -> str:
    return "report" if name in REPORTING else "sum"
