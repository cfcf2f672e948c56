"""Prefix extension: strings that no one could enumerate, at epsilon spent once."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.oracles.hadamard import Hadamard
from protocol.oracles.ocms.ocms_gf import OcmsGf
from protocol.oracles.prefix_extension import PrefixExtension
from protocol.randomness import seeded_words, system_words
from tests.protocol.chance import seeded

SEED = bytes(32)


def population(
    n: int, shares: dict[bytes, float], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], Counter[bytes]]:
    """Return `n` strings, of named `shares` and the rest random, and the named ones' counts."""
    names = list(shares)
    size = len(names[0])
    draws = rng.choice(len(names) + 1, n, p=[*shares.values(), 1 - sum(shares.values())])
    named = np.frombuffer(b"".join([*names, bytes(size)]), np.uint8).reshape(-1, size)
    strings = named[draws]
    rest = draws == len(names)
    strings[rest] = rng.integers(0, 256, (int(rest.sum()), size), np.uint8)
    counts = np.bincount(draws, minlength=len(names))
    return strings, Counter({name: int(counts[i]) for i, name in enumerate(names)})


TOP = {b"tomatoes": 0.1, b"tomatoey": 0.08, b"potatoes": 0.06, b"\x00\x00 zero\xff": 0.05}


def test_the_top_strings_of_64_bits_are_named_and_no_others() -> None:
    # Two of them differ in their last bits only. The count that is listed half the time is 2.7% of
    # n; a share of 5% is 4 deviations above, and one of them is missed with probability 1e-3.
    rng = np.random.default_rng(1)
    strings, counts = population(300_000, TOP, rng)
    mechanism = PrefixExtension(oracle=Hadamard(3.0, 2**16), size=8, seed=SEED, beta=1e-3)
    named = mechanism.identify(mechanism.perturb(strings, seeded_words(rng)))
    assert {string.value for string in named} == set(TOP)
    assert [string.count for string in named] == sorted((s.count for s in named), reverse=True)
    for string in named:
        assert abs(string.count - counts[string.value]) < 4.5 * math.sqrt(string.variance)


def test_strings_of_160_bits_are_named() -> None:
    rng = np.random.default_rng(2)
    top = {b"www.example.com/abcd": 0.2, b"www.example.com/wxyz": 0.2}
    strings, _ = population(200_000, top, rng)
    mechanism = PrefixExtension(
        oracle=Hadamard(4.0, 2**18), size=20, seed=SEED, step=12, keep=8, beta=1e-3
    )
    named = mechanism.identify(mechanism.perturb(strings, seeded_words(rng)))
    assert {string.value for string in named} == set(top)


def test_the_sure_count_is_found_nearly_always() -> None:
    """Check that 23 of 30 runs succeed at the count for 95%: 4.5 deviations below the mean."""
    oracle = OcmsGf.for_l2(4.0, 2**16)
    mechanism = PrefixExtension(oracle=oracle, size=3, seed=SEED, start=9, step=5, keep=8)
    share = mechanism.reliably_detected_count(5000) / 5000
    assert share < 0.5
    hits = wrong = 0
    for run in range(30):
        rng = np.random.default_rng(run)
        strings, _ = population(5000, {b"yes": share}, rng)
        named = {
            string.value
            for string in mechanism.identify(mechanism.perturb(strings, seeded_words(rng)))
        }
        hits += b"yes" in named
        wrong += bool(named - {b"yes"})
    assert hits >= 23
    assert wrong <= 7  # of an expected 1.5: probability 2e-4
    assert mechanism.reliably_detected_count(40) == math.inf


def test_strings_that_nobody_holds_are_listed_with_probability_beta() -> None:
    # 50 runs without a heavy string, beta 0.3: 4 to 28 list one, except with probability 1e-4.
    mechanism = PrefixExtension(
        oracle=Hadamard(1.0, 2**16), size=2, seed=SEED, start=8, step=8, keep=16, beta=0.3
    )
    listed = 0
    for run in range(50):
        rng = np.random.default_rng(run)
        strings = rng.integers(0, 256, (2000, 2), np.uint8)
        listed += bool(mechanism.identify(mechanism.perturb(strings, seeded_words(rng))))
    assert 4 <= listed <= 28


def test_a_report_tells_strings_apart_by_no_more_than_the_oracle() -> None:
    # Every outcome of the real code: the length, the row, and whether the sign is true.
    oracle = Hadamard(1.0, 4)
    mechanism = PrefixExtension(oracle=oracle, size=1, seed=SEED, start=2, step=3, keep=4)
    keep = oracle.keep_of_2_64
    reports = list[Counter[bytes]]()
    for value in range(0, 256, 17):
        probabilities = Counter[bytes]()
        for group, row, is_true in itertools.product(range(3), range(4), (1, 0)):
            words = iter([(group * 2**32 // 3 + 2) << 32, row << 62, keep - is_true, 0])
            report = mechanism.perturb(
                np.array([[value]], np.uint8), lambda _, w=words: np.array([next(w)], np.uint64)
            )
            share = Fraction(keep if is_true else 2**64 - keep, 2**64) / 12
            probabilities[report.tobytes()] += share  # type: ignore[assignment]
        assert sum(probabilities.values()) == 1
        reports.append(probabilities)
    assert all(len(probabilities) == 3 * 4 * 2 for probabilities in reports)
    worst = max(
        float(Fraction(first[report], second[report]))
        for first, second in itertools.permutations(reports, 2)
        for report in first
    )
    assert worst == pytest.approx(math.e, rel=1e-9)


def test_which_length_is_reported_does_not_depend_on_the_string() -> None:
    mechanism = PrefixExtension(oracle=Hadamard(1.0, 2**8), size=8, seed=SEED)
    groups = [
        mechanism.perturb(np.full((5000, 8), value, np.uint8), seeded(4))[:, 0]
        for value in (0, 255)
    ]
    assert (groups[0] == groups[1]).all()
    assert mechanism.lengths == [12, 20, 28, 36, 44, 52, 60, 64]
    expected = 5000 / 8
    seen = np.bincount(groups[0], minlength=8)
    assert ((seen - expected) ** 2 / expected).sum() < 29.9  # chi-square, 7 degrees: 1e-4


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        *(({"size": size}, "size must") for size in (0, 513)),
        *(({"start": start}, "start must") for start in (0, 21)),
        *(({"step": step}, "step must") for step in (0, 17)),
        *(({"keep": keep}, "keep must") for keep in (0, 2**15)),
        *(({"beta": beta}, "beta must") for beta in (0, 1, math.nan)),
        ({"seed": b"short"}, "seed must"),
        ({"size": 64, "step": 16}, "keep, step and size must give at most 32 MB"),
        ({"size": 512, "step": 1}, "step must be larger: 4085 lengths"),
    ],
)
def test_parameters_out_of_range_are_refused(wrong: dict[str, Any], why: str) -> None:
    mechanism = PrefixExtension(oracle=Hadamard(1.0, 2**8), size=8, seed=SEED)
    with pytest.raises(ValueError, match=why):
        replace(mechanism, **wrong)


def test_strings_and_reports_of_another_form_are_refused() -> None:
    mechanism = PrefixExtension(oracle=Hadamard(1.0, 2**8), size=8, seed=SEED)
    for strings in (np.zeros((2, 7), np.uint8), np.zeros((2, 8), np.int64), np.zeros(8, np.uint8)):
        with pytest.raises(ValueError, match=r"strings must be uint8 of shape \(n, 8\)"):
            mechanism.perturb(strings, system_words)
    with pytest.raises(ValueError, match="strings are empty"):
        mechanism.perturb(np.zeros((0, 8), np.uint8), system_words)
    reports = mechanism.perturb(np.zeros((500, 8), np.uint8), seeded(6))
    for wrong in (reports.astype(np.int64), reports[:, :-1]):
        with pytest.raises(ValueError, match=r"reports must be uint8 of shape \(n, 3\)"):
            mechanism.identify(wrong)
    with pytest.raises(ValueError, match="max_results must be 1 or more"):
        mechanism.identify(reports, 0)
    with pytest.raises(ValueError, match="no report is of 12 bits: more devices are needed"):
        mechanism.identify(reports[:0])
    with pytest.raises(ValueError, match="no report is of 64 bits"):
        mechanism.identify(reports[reports[:, 0] < 7])
    reports[3, 0] = 8
    with pytest.raises(ValueError, match="length numbers below 8"):
        mechanism.identify(reports)
