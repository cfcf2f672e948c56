"""No value makes a report more than e^epsilon times as likely as another: exact, and measured."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import chdtrc

from protocol.numerics.array_types import Codes, ItemValues, PackedReports
from protocol.oracles.base_oracles import IntegerReportOracle
from protocol.oracles.krr import KaryRandomizedResponse
from protocol.oracles.ocms.ocms_gf import OcmsGf
from protocol.oracles.oracle import Oracle
from protocol.randomness import PROBABILITY_ONE, RandomWords, exp_lower_bound, favoured_of_2_64
from tests.protocol.chance import seeded
from tests.protocol.oracles.examples import name, small
from tests.support.report_audit import audit

EPSILONS = (0.1, 1.0, 3.0, 20.0)
every_oracle = pytest.mark.parametrize("oracle", small(1.0), ids=name)


def as_reports(oracle: Oracle, codes: Iterable[int]) -> PackedReports:
    joined = b"".join(code.to_bytes(oracle.nbytes, "little") for code in codes)
    return np.frombuffer(joined, np.uint8).reshape(-1, oracle.nbytes)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 0.5, 1.0, 3.0, 20.0, 32.0])
def test_growth_is_just_below_the_exponential(epsilon: float) -> None:
    with localcontext() as context:
        context.prec = 120
        true = Fraction(Decimal(epsilon).exp())
    assert true * (1 - Fraction(1, 10**69)) < exp_lower_bound(epsilon) < true


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_thresholds_are_the_largest_that_keep_the_promise(epsilon: float) -> None:
    for favoured, others in ((1, 1), (1, 2), (1, 12), (3, 7)):
        keep = favoured_of_2_64(epsilon, favoured, others)
        ratios = [
            Fraction(probability, favoured) / Fraction(PROBABILITY_ONE - probability, others)
            for probability in (keep, keep + 1)
        ]
        assert ratios[0] <= exp_lower_bound(epsilon) < ratios[1]


@pytest.mark.parametrize("epsilon", [0.1, 3.0])
@pytest.mark.parametrize("number", range(len(small(1.0))))
def test_every_report_is_within_the_ratio_and_some_reach_it(number: int, epsilon: float) -> None:
    oracle = small(epsilon)[number]
    given = [oracle.distribution(value) for value in (0, 1, oracle.domain - 1)]
    for probabilities in given:
        assert sum(share * count for share, count in Counter(probabilities.values()).items()) == 1
    most = Fraction(0)
    for first, second in combinations(given, 2):
        assert first.keys() == second.keys()
        pairs = {(first[report], second[report]) for report in first}
        most = max(most, *(max(p / p_, p_ / p) for p, p_ in pairs))
    assert most <= exp_lower_bound(epsilon)
    assert float(most / exp_lower_bound(epsilon)) == pytest.approx(1, abs=1e-8)


@every_oracle
def test_reports_have_the_distribution_that_was_enumerated(oracle: Oracle) -> None:
    """Chi-square over all reports: a case fails with probability 1e-4; the seed is fixed."""
    runs, value = 60_000, 4
    reports = oracle.perturb(np.full(runs, value, np.uint64), seeded(11))
    distinct, counts = np.unique(reports, axis=0, return_counts=True)
    seen = {
        int.from_bytes(row.tobytes(), "little"): n for row, n in zip(distinct, counts, strict=True)
    }
    probabilities = oracle.distribution(value)
    assert seen.keys() <= probabilities.keys()
    expected = np.array([runs * float(share) for share in probabilities.values()])
    observed = np.array([seen.get(code, 0) for code in probabilities])
    # PackedReports are taken together until 20 of each group are expected.
    order = np.argsort(expected, kind="stable")
    groups = (expected[order].cumsum() // 20).astype(np.int64)
    groups = np.unique(groups, return_inverse=True)[1]
    wanted, had = (np.bincount(groups, column[order]) for column in (expected, observed))
    statistic = float(((had - wanted) ** 2 / wanted).sum())
    assert chdtrc(len(wanted) - 1, statistic) > 1e-4


@every_oracle
def test_mean_votes_are_p_and_q_exactly_where_hashing_is(oracle: Oracle) -> None:
    """Check that estimates are unbiased for all data, not only averaged over hash functions."""
    if oracle.name in ("olh", "apple-cms"):
        pytest.skip("their hash functions are assumed to be random")
    probabilities = oracle.distribution(3)
    every = np.arange(oracle.domain, dtype=np.uint64)
    votes = oracle.votes(as_reports(oracle, probabilities), every)
    table: dict[Fraction, NDArray[np.int64]] = {}
    for share, row in zip(probabilities.values(), votes, strict=True):
        table[share] = table.get(share, np.zeros(oracle.domain, np.int64)) + row
    means = [sum(share * int(row[x]) for share, row in table.items()) for x in every.tolist()]
    assert means[3] == oracle.mean_vote_if_held
    assert set(means[:3] + means[4:]) == {oracle.mean_vote_if_other}


@every_oracle
def test_an_audit_finds_no_more_than_is_claimed_and_most_of_it(oracle: Oracle) -> None:
    """Check a bound whose false alarms have probability 1e-6 each; the seed is fixed."""
    chance = seeded(12)
    finding = audit(oracle, (2, 7), 20_000, chance, confidence=1 - 1e-6)
    assert 0.5 < finding.epsilon_lower_bound <= oracle.epsilon


@dataclass(frozen=True)
class Loud(KaryRandomizedResponse):
    """Keeps the truth as if epsilon were half as much again."""

    @property
    def keep_of_2_64(self) -> int:  # type: ignore[override]
        return favoured_of_2_64(1.5 * self.epsilon, 1, self.domain - 1)


@dataclass(frozen=True)
class Marked(OcmsGf):
    """Draws its hash function by the value: its symbol is private, and its vector is not."""

    def _encode(self, values: ItemValues, chance: RandomWords) -> Codes:
        codes = OcmsGf._encode(self, values, chance)
        return np.where(values == 2, codes - codes % np.uint64(2), codes)


@dataclass(frozen=True)
class Shy(KaryRandomizedResponse):
    """Never lies with the value 0."""

    def _encode(self, values: ItemValues, chance: RandomWords) -> Codes:
        codes = KaryRandomizedResponse._encode(self, values, chance)
        return np.where((codes == 0) & (values != 0), values, codes)


@pytest.mark.parametrize(
    "broken",
    [Loud(1.0, 10), Marked(1.0, 10, 3), Shy(1.0, 10)],
    ids=lambda oracle: type(oracle).__name__,
)
def test_an_audit_catches_a_broken_oracle(broken: IntegerReportOracle) -> None:
    chance = seeded(13)
    values = (0, 7) if isinstance(broken, Shy) else (2, 7)
    assert audit(broken, values, 20_000, chance).epsilon_lower_bound > broken.epsilon
