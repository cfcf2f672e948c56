"""Laws of every oracle: reports travel and add, in any order, and garbage is refused."""

from collections.abc import Callable

import numpy as np
import pytest

from protocol.numerics.array_types import ItemValues
from protocol.oracles import report_counting
from protocol.oracles.base_oracles import IntegerReportOracle
from protocol.oracles.hadamard import Hadamard
from protocol.oracles.krr import KaryRandomizedResponse
from protocol.oracles.limits import MAX_FULLY_DECODED_DOMAIN
from protocol.oracles.ocms import ocms_gf
from protocol.oracles.ocms.hash_range import total_variance
from protocol.oracles.ocms.hash_range_mixture import OcmsMixture
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.ocms_gf import OcmsGf
from protocol.oracles.oracle import Oracle, ReportCounts
from protocol.oracles.registry import ORACLES, OracleKinds, oracle_from_parameters
from protocol.oracles.report_counting import count_solutions
from protocol.oracles.subset_selection import SubsetSelection
from protocol.randomness import system_words
from protocol.reference_mechanisms.dictionary import REFERENCE_ORACLES
from protocol.reference_mechanisms.oracles.local_hashing import LocalHashing
from protocol.reference_mechanisms.oracles.recursive_hadamard import RecursiveHadamard
from tests.protocol.chance import seeded
from tests.protocol.oracles.examples import name, small, usual

MIXTURE = {"oracle": "ocms-mixture", "domain": 9, "first": 3, "second": 2, "share": 0.5}
EVERY_KIND: OracleKinds = {**ORACLES, **REFERENCE_ORACLES}
every_oracle = pytest.mark.parametrize("oracle", [*small(1.0), *usual()], ids=name)


def held(oracle: Oracle, n: int) -> ItemValues:
    return (np.arange(n) ** 2 % oracle.domain).astype(np.uint64)


def test_every_kind_is_an_example() -> None:
    assert {type(oracle) for oracle in small(1.0)} == {kind.oracle for kind in EVERY_KIND.values()}


@every_oracle
def test_parameters_make_the_oracle_again(oracle: Oracle) -> None:
    again = oracle_from_parameters(oracle.parameters, EVERY_KIND)
    assert again == oracle
    assert all(isinstance(value, str | int | float) for value in oracle.parameters.values())


@pytest.mark.usefixtures("counts_reports")
@every_oracle
def test_the_fast_path_and_the_candidates_are_the_sums_of_votes(oracle: Oracle) -> None:
    reports = oracle.perturb(held(oracle, 300), seeded(5))
    every = np.arange(oracle.domain, dtype=np.uint64)
    votes = oracle.votes(reports, every).sum(axis=0, dtype=np.int64)
    assert oracle.support(oracle.aggregate(reports)).tolist() == votes.tolist()
    some = every[[3, 1, 7]]
    parts = [oracle.aggregate(part, some) for part in (reports[:0], reports[90:], reports[:90])]
    for counts in (oracle.aggregate(reports, some), parts[0] + parts[1] + parts[2]):
        assert counts.reports == 300
        assert oracle.support(counts).tolist() == votes[[3, 1, 7]].tolist()
    with pytest.raises(ValueError, match="no reports"):
        oracle.frequencies(parts[0])
    assert oracle.support(oracle.aggregate(reports[:1], every)).shape == (oracle.domain,)
    whole, asked = oracle.estimate(reports), oracle.estimate(reports, some)
    assert asked == pytest.approx(whole[[3, 1, 7]], abs=1e-12)


@every_oracle
def test_values_out_of_the_domain_are_refused(oracle: Oracle) -> None:
    for wrong in ([oracle.domain], [-1], [0, oracle.domain + 5]):
        with pytest.raises(ValueError, match=f"values must be from 0 to {oracle.domain - 1}"):
            oracle.perturb(np.array(wrong), system_words)
    with pytest.raises(ValueError, match="values must be integers"):
        oracle.perturb(np.array([0.5]), system_words)  # type: ignore[arg-type]
    reports = oracle.perturb(held(oracle, 2), system_words)
    with pytest.raises(ValueError, match="candidates must be from"):
        oracle.estimate(reports, np.array([oracle.domain], np.uint64))
    with pytest.raises(ValueError, match="distinct"):
        oracle.estimate(reports, np.array([1, 1], np.uint64))
    with pytest.raises(ValueError, match=r"value must be from|too many"):
        oracle.distribution(oracle.domain)


@every_oracle
def test_a_wrong_shape_and_a_field_out_of_range_are_refused(oracle: Oracle) -> None:
    reports = oracle.perturb(held(oracle, 4), system_words)
    wide = np.concatenate([reports, reports[:, :1]], axis=1)
    for malformed in (wide, reports[:, :-1], reports[0], reports.astype(np.int64)):
        with pytest.raises(ValueError, match="reports must be uint8 of shape"):
            oracle.aggregate(malformed)
    if isinstance(oracle, IntegerReportOracle):
        if oracle.possible_reports == 256**oracle.nbytes:
            pytest.skip("every string of bytes is a report")
        code = oracle.possible_reports  # one too much
        wrong = np.frombuffer(code.to_bytes(oracle.nbytes, "little"), np.uint8)
        last = np.frombuffer((code - 1).to_bytes(oracle.nbytes, "little"), np.uint8)
        oracle.check(last.reshape(1, -1))
    else:
        wrong = np.full(oracle.nbytes, 255, np.uint8)
    reports[2] = wrong
    with pytest.raises(ValueError, match="report 2 "):
        oracle.aggregate(reports)
    with pytest.raises(ValueError, match="report 2 "):
        oracle.votes(reports, np.array([0], np.uint64))


def test_counts_of_another_oracle_or_of_others_candidates_do_not_add() -> None:
    mine, other = small(1.0)[3:5]
    counts = [
        oracle.aggregate(oracle.perturb(held(oracle, 9), system_words)) for oracle in (mine, other)
    ]
    with pytest.raises(ValueError, match="do not add"):
        counts[0] + counts[1]
    with pytest.raises(ValueError, match="cannot be used by"):
        mine.frequencies(counts[1])
    reports = mine.perturb(held(mine, 9), system_words)
    first, second = (mine.aggregate(reports, np.array([x], np.uint64)) for x in (1, 2))
    for unlike in (second, counts[0]):
        with pytest.raises(ValueError, match="different candidates"):
            first + unlike
    with pytest.raises(ValueError, match="cells"):
        mine.support(ReportCounts(mine, 9, np.zeros(3, np.int64)))


@pytest.mark.parametrize(
    "epsilon", [0.0, -1.0, float("inf"), float("nan"), 1000.0, 1e-9, True, "1"]
)
def test_an_epsilon_out_of_range_is_refused(epsilon: float) -> None:
    for oracle in small(1.0):
        with pytest.raises(ValueError, match="epsilon must be from 1e-06 to 32"):
            oracle_from_parameters(oracle.parameters | {"epsilon": epsilon}, EVERY_KIND)
    makers: list[Callable[[float, int], Oracle]] = [
        *(kind.for_mse for kind in (Ocms, OcmsGf, OcmsMixture, SubsetSelection)),
        *(kind.for_l2 for kind in (Ocms, OcmsGf, LocalHashing)),
        SubsetSelection.standard,
        RecursiveHadamard.for_epsilon,
    ]
    for make in makers:
        with pytest.raises(ValueError, match="epsilon must be from 1e-06 to 32"):
            make(epsilon, 1000)
        with pytest.raises(ValueError, match="domain must be"):
            make(1.0, 0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"oracle": "krr", "domain": 1}, "domain must be from 2"),
        ({"oracle": "krr", "domain": 2**33}, "domain must be from 2"),
        ({"oracle": "krr", "domain": True}, "domain must be"),
        ({"oracle": "ocms", "domain": 3, "m": 3, "prime": 101}, "domain must be more than m = 3"),
        ({"oracle": "ocms", "domain": 9, "m": 1, "prime": 101}, "m must be 2 or more"),
        ({"oracle": "ocms", "domain": 9, "m": 3, "prime": 97}, "prime must be a prime from 101"),
        ({"oracle": "ocms", "domain": 999, "m": 3, "prime": 997}, "prime must be a prime from 999"),
        ({"oracle": "ocms", "domain": 9, "m": 3, "prime": 1001}, "prime must be a prime"),
        ({"oracle": "ocms", "domain": 2**31 - 2, "m": 9, "prime": 2**31 - 1}, "take 66 bits"),
        ({"oracle": "ocms-gf", "domain": 9, "q": 6}, "q must be a prime or a power of 2"),
        ({"oracle": "ocms-gf", "domain": 5, "q": 5}, "k-ary randomized response"),
        ({"oracle": "ocms-gf", "domain": 2**32, "q": 3}, r"domain must be at most 3\^20"),
        (MIXTURE | {"second": 3}, "must differ"),
        (MIXTURE | {"share": 1.0}, "share must be between 0 and 1"),
        (MIXTURE | {"hashing": "md5"}, "hashing must be"),
        ({"oracle": "recursive-hadamard", "domain": 9, "residues": 3}, "power of 2"),
        ({"oracle": "recursive-hadamard", "domain": 8, "residues": 4}, "more than the 8 symbols"),
        ({"oracle": "olh", "domain": 9, "g": 4, "seed_bits": 64}, "seed_bits must be from"),
        ({"oracle": "olh", "domain": 4, "g": 4}, "domain must be more than"),
        ({"oracle": "apple-cms", "domain": 9, "m": 3}, "power of 2"),
        ({"oracle": "apple-cms", "domain": 9, "functions": 0}, "functions must be"),
        ({"oracle": "apple-cms", "domain": 9, "seed": -1}, "seed must be"),
        ({"oracle": "subset-selection", "domain": 9, "w": 9}, "w must be from 1 to 8"),
        ({"oracle": "rappor", "domain": 2**25, "symmetric": True}, r"at most 2\^24"),
        ({"oracle": "hadamard", "domain": 9, "m": 2}, "hadamard: .* unexpected"),
        ({"oracle": "ocms", "domain": 9, "m": 2}, "ocms: .* missing"),
        ({"oracle": "ocms", "domain": 9.0, "m": 2, "prime": 101}, "domain must be of type int"),
        ({"oracle": "ocms-gf", "domain": 9, "q": "3"}, "q must be of type int"),
        ({"oracle": "rappor", "domain": 9, "symmetric": 1}, "symmetric must be of type bool"),
        ({"oracle": "ocms-gf", "domain": 9, "q": 3, "epsilon": "1"}, "epsilon must be from"),
        ({"oracle": "flh", "domain": 9}, "oracle must be one of krr, ocms"),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_name(
    parameters: dict[str, str | int | float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        oracle_from_parameters({"epsilon": 1.0} | parameters, EVERY_KIND)


def test_a_large_domain_is_asked_for_candidates_only() -> None:
    oracle = oracle_from_parameters({"oracle": "ocms-gf", "epsilon": 8.0, "domain": 3**18, "q": 3})
    assert oracle.domain > MAX_FULLY_DECODED_DOMAIN
    values = np.full(2000, 123_456_789, np.uint64)
    reports = oracle.perturb(values, seeded(1))
    with pytest.raises(ValueError, match="candidates must be named"):
        oracle.aggregate(reports)
    estimates = oracle.estimate(reports, np.array([123_456_789, 5], np.uint64))
    assert estimates == pytest.approx([1, 0], abs=0.08)  # 4.5 standard errors at most


def test_n_levels_and_frequencies_out_of_range_are_refused() -> None:
    oracle = Hadamard(1.0, 10)
    with pytest.raises(ValueError, match="n must be 1 or more"):
        oracle.variance(np.array([0.5]), 0)
    with pytest.raises(ValueError, match="frequencies must be from"):
        oracle.variance(np.array([-0.1]), 10)
    with pytest.raises(ValueError, match="of all 10 values"):
        oracle.variances(np.zeros(9), 10)
    with pytest.raises(ValueError, match="level must be between"):
        oracle.interval(ReportCounts(oracle, 10, np.zeros(oracle.cells, np.int64)), 1.0)


@pytest.mark.usefixtures("counts_reports")
@pytest.mark.parametrize("q", [3, 4, 5, 8])
def test_batches_of_values_are_transformed_or_solved_by_the_cheaper_way(
    q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways agree with single votes, also if a batch has too many cells to store."""
    monkeypatch.setattr(ocms_gf, "_MAX_STORED_CELLS", 1)
    oracle = OcmsGf(1.0, 60, q)
    assert oracle.cells == 60
    everything = np.arange(60, dtype=np.uint64)
    solved = []
    monkeypatch.setattr(
        report_counting,
        "count_solutions",
        lambda *given: solved.append(1) or count_solutions(*given),
    )
    for n, times in ((3, 1), (5000, 0)):
        reports = oracle.perturb(held(oracle, n), system_words)
        whole = oracle.aggregate(reports)
        asked = oracle.votes(reports, everything).sum(axis=0, dtype=np.int64)
        assert (whole.cells == asked).all()
        assert len(solved) == times
        solved.clear()


@pytest.mark.parametrize("domain", [1000, 2**18 + 1, 2**20])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_batches_cost_little_compared_with_their_reports(epsilon: float, domain: int) -> None:
    """A batch allocates and adds cells, so it holds enough reports to outweigh that cost."""
    oracles: list[Oracle] = [
        KaryRandomizedResponse(epsilon, domain),
        Hadamard(epsilon, domain),
        OcmsGf.for_l2(epsilon, domain),
        OcmsGf(epsilon, domain, 8),
        Ocms.for_l2(epsilon, domain),
        OcmsMixture.for_mse(epsilon, domain),
    ]
    assert OcmsGf(2.0, domain, 8).decode_ns(100_000) < 2e9
    for oracle in oracles:
        assert oracle.batched_decode_ns(2) == oracle.decode_ns(2)
        for reports in (10**5, 10**6):
            whole = oracle.decode_ns(reports)
            assert oracle.batched_decode_ns(reports) <= whole + max(33 * reports, 0.2 * whole)


@pytest.mark.parametrize(
    ("epsilon", "domain", "q", "bits"),
    [(4.0, 200_000, 59, 24), (3.0, 2**20, 16, 24), (3.0, 200_000, 23, 23), (5.0, 100_000, 149, 29)],
)
def test_a_field_is_taken_that_can_be_transformed_if_its_error_is_alike(
    epsilon: float, domain: int, q: int, bits: int
) -> None:
    """The first with q = 53 would take 29 bits, and 19 s per million reports instead of 0.6."""
    oracle = OcmsGf.for_l2(epsilon, domain)
    assert (oracle.q, oracle.bits) == (q, bits)
    least = min(total_variance(epsilon, other, domain) for other in range(2, 300))
    assert total_variance(epsilon, q, domain) <= 1.03 * least
