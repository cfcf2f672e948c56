"""Degree and threshold: the independently computed table, and the promises themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import InfeasibleError
from secagg.graph import MOST_LOAD, Assumptions, Graph, Mode, parameters

# k / t (greatest valid t) for n = 100, 1,000, 10,000 and 100,000, at sigma = 40, computed
# independently from log-pmfs; corrupt = dropout = rate.
TABLE: dict[tuple[Mode, int, float], str] = {
    ("semi-honest", 20, 0.05): "12/6(7) 30/17(18) 34/20(20) 36/21(21)",
    ("semi-honest", 20, 0.2): "40/21(21) 98/54(54) 122/67(67) 134/73(73)",
    ("semi-honest", 20, 1 / 3): "68/34(35) 292/154(154) 442/231(231) 498/260(260)",
    ("semi-honest", 30, 0.05): "12/6(7) 34/18(19) 38/21(21) 40/22(22)",
    ("semi-honest", 30, 0.2): "42/21(22) 112/59(59) 136/71(71) 150/78(78)",
    ("semi-honest", 30, 1 / 3): "68/34(35) 318/163(163) 498/255(255) 558/285(285)",
    ("active", 20, 0.05): "16/11(11) 52/37(37) 62/44(44) 68/48(48)",
    ("active", 20, 0.2): "62/42(42) 302/206(206) 482/328(328) 552/375(375)",
    ("active", 30, 0.05): "16/11(11) 62/43(43) 74/51(51) 80/55(55)",
    ("active", 30, 0.2): "62/42(42) 340/229(229) 566/381(381) 648/436(436)",
}
CASES = [
    (mode, eta, rate, n, entry)
    for (mode, eta, rate), row in TABLE.items()
    for n, entry in zip((100, 1_000, 10_000, 100_000), row.split(), strict=True)
]


@pytest.mark.parametrize(("mode", "eta", "rate", "n", "entry"), CASES)
def test_parameters_are_those_computed_independently(
    mode: Mode, eta: int, rate: float, n: int, entry: str
) -> None:
    found = parameters(n, Assumptions(rate, rate, 40, eta, mode))
    greatest = found.threshold + found.slack
    assert f"{found.degree}/{found.threshold}({greatest})" == entry


def test_an_active_server_with_a_third_corrupt_and_a_third_lost_is_infeasible() -> None:
    with pytest.raises(InfeasibleError, match="assume less"):
        parameters(1_000, Assumptions(1 / 3, 1 / 3, mode="active"))


@pytest.mark.parametrize(("n", "corrupt", "dropout"), [(6, 0.35, 0.2), (7, 0.3, 0.2)])
def test_an_active_server_never_collects_two_thresholds(
    n: int, corrupt: float, dropout: float
) -> None:
    assumptions = Assumptions(corrupt, dropout, mode="active")
    found = parameters(n, assumptions)
    assert found.is_complete
    # The honest answer one of two stories, the corrupt both: together n + A shares.
    assert 2 * found.threshold > n + assumptions.corrupted(n) >= 2 * (found.threshold - 1)


def test_more_neighbours_than_a_device_can_serve_are_infeasible() -> None:
    with pytest.raises(InfeasibleError, match="2,000 neighbours"):
        parameters(100_000, Assumptions(0.45, 0.44, sigma=256, eta=256))


@given(st.integers(2, 60), st.floats(0, 0.45), st.floats(0, 0.5))
def test_parameters_leave_the_corrupt_short_and_the_survivors_enough(
    n: int, corrupt: float, dropout: float
) -> None:
    assumptions = Assumptions(corrupt, dropout)
    try:
        found = parameters(n, assumptions)
    except InfeasibleError:
        short = assumptions.quorum(n) < max(assumptions.corrupted(n) + 1, 2)
        assert short or corrupt + dropout > MOST_LOAD
        return
    assert 2 <= found.threshold <= found.degree + 1 <= n
    if found.is_complete:
        assert assumptions.corrupted(n) < found.threshold <= assumptions.quorum(n)


def test_a_random_neighbourhood_keeps_both_promises_as_often_as_claimed() -> None:
    # At sigma = 9 and eta = 7 the odds are large enough to count: over 400 graphs of 200
    # the share with a breach must stay below 2^-9 and 2^-7. Odds of a false alarm, were
    # the bounds tight: Pr[Binomial(400, 2^-9) > 5] < 1e-3 and [Binomial(400, 2^-7) > 11] < 1e-3.
    n, assumptions = 200, Assumptions(0.15, 0.15, sigma=9, eta=7)
    found = parameters(n, assumptions)
    assert not found.is_complete
    chance = np.random.default_rng(7)
    private = correct = 0
    for _ in range(400):
        graph = Graph(n, found.degree, chance.bytes(32))
        corrupt = set(chance.choice(n, assumptions.corrupted(n), replace=False).tolist())
        lost = set(chance.choice(n, assumptions.lost(n), replace=False).tolist())
        around = [set(graph.neighbours(slot)) for slot in range(n)]
        private += any(len(near & corrupt) >= found.threshold for near in around)
        correct += any(len(near - lost) < found.threshold for near in around)
    assert private <= 5
    assert correct <= 11


@given(st.integers(3, 80), st.integers(1, 39), st.binary(min_size=32, max_size=32))
def test_neighbourhood_is_mutual_regular_and_never_oneself(n: int, half: int, seed: bytes) -> None:
    degree = min(2 * half, n - 1)
    graph = Graph(n, degree, seed)
    near = [graph.neighbours(slot) for slot in range(n)]
    for slot, others in enumerate(near):
        assert len(others) == len(set(others)) == degree
        assert slot not in others
        assert list(others) == sorted(others)
        assert all(slot in near[other] for other in others)


def test_another_seed_gives_another_graph() -> None:
    assert Graph(100, 10, bytes(32)).neighbours(0) != Graph(100, 10, b"\1" * 32).neighbours(0)


def test_a_stranger_has_no_neighbours() -> None:
    with pytest.raises(ValueError, match="slots are 0 to 9"):
        Graph(10, 4, bytes(32)).neighbours(10)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_outside_zero_to_one_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        Assumptions(rate, 0.1)
    with pytest.raises(ValueError, match="fraction"):
        Assumptions(0.1, rate)


def test_a_sum_of_one_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="hides nothing"):
        parameters(1, Assumptions(0, 0))
