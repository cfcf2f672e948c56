"""Catalogue of the mechanisms: purpose, guarantee and cost of each, for lists and help."""

from difflib import get_close_matches
from typing import Final

_PURE_LOCAL: Final = "epsilon-local DP, replacing the item"
# Of each guarantee, the mechanisms with purpose and cost; d values, m rows.
CATALOGUE: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "secure sum of a cohort; the sum itself is seen": {
        "tracked": (
            "heavy hitters of any domain, known ones counted exactly",
            "the fewest `words` per round",
        ),
        "adaptive-iblt": (
            "heavy hitters by one table per round; devices learn nothing",
            "`words` per round",
        ),
        "subsampled-iblt": (
            "heavy hitters with one sampling threshold",
            "`words` per round, 260 tables by theorem",
        ),
        "approximate-histogram": (
            "how often each heavy item is held",
            "`words` per round, tables and a sketch",
        ),
        "number-sums": (
            "mean, sum and variance of numbers, exact, also by segment",
            "24 bytes or fewer per round and segment",
        ),
        "count-median": ("counts of a small domain; private with `epsilon`", "`words` per round"),
        "count-sketch": ("counts of a small domain; private with `epsilon`", "`words` per round"),
    },
    "central (epsilon, delta): of the sum with noise, else of what is shown": {
        "triehh": (
            "heavy strings, found symbol by symbol in noise or samples",
            "`words` in every round",
        ),
        "hierarchical-histogram": (
            "quantiles, ranges and ranks of numbers, in one round",
            "`words` per round: a number for every prefix",
        ),
    },
    _PURE_LOCAL: {
        "krr": ("counts of a few values, which are reported themselves", "log2 d bits"),
        "ocms": ("all counts by the paper's hashed sketch", "about 2 log2 d + log2 m bits"),
        "ocms-gf": ("all counts by inner products; recommended", "about log2 d + log2 m bits"),
        "ocms-mixture": (
            "all counts, the lowest maximum error in few bits",
            "about log2 d + log2 m bits",
        ),
        "hadamard": ("all counts in milliseconds; low epsilon", "log2 d + 1 bits"),
        "recursive-hadamard": ("all counts; a baseline", "log2 d + 1 bits"),
        "olh": ("all counts by a hash seed; a baseline", "40 + log2 m bits"),
        "apple-cms": ("all counts by 2^16 hash functions; biased, a baseline", "17 + log2 m bits"),
        "subset-selection": ("all counts, the lowest possible error", "d bits"),
        "rappor": ("all counts by a noisy unary code", "d bits"),
        "prefix-extension": (
            "heavy strings of any length; recommended for them",
            "8 bits and an oracle's",
        ),
    },
    "epsilon or (epsilon, delta)-local DP": {
        "jl-hh": (
            "the best of 2^24 values, all estimated; reference",
            "log2 m + 1 bits sampled, else m integers",
        ),
        "glps-hh": (
            "heavy values below 2^64, decoded bit by bit; reference",
            "11 to 13 bits sampled, else 1,000 integers and more",
        ),
        "bucket-hh": (
            "the most frequent value below 2^64; reference",
            "10 to 12 bits sampled, else 456 integers and more",
        ),
    },
}


def unknown_mechanism(name: str) -> str:
    """Return the error for the name of no mechanism, with the nearest one."""
    near = get_close_matches(name, [each for group in CATALOGUE.values() for each in group], 1)
    hint = f"did you mean {near[0]}?" if near else "`blindtally mechanisms` lists them"
    return f"there is no mechanism {name!r}: {hint}"
