"""Posterior of counts that may have left their windows, given their total and check.

A counter shows a count modulo its window q, so an item has the possible counts c + k q. The number
M of windows that are missing from the total, and the check modulo p, are known. A prior weighs the
counts of each item:

    W(c)  =  (1 - h) usual(c)  +  h m / (2 max(m, c)^2)

usual is negative binomial with the expected count m and its deviation. The second term is that of
an item whose rate has changed: the logarithm of the change has a Laplace distribution of scale 1,
so large changes are possible, and rises as probable as falls. The share h of such items is what the
round shows: it has the highest likelihood of the remainders and of M. So in a burst, far counts are
more probable.

**Marginals.** Without M and the check, items are independent. The distribution of the sum of all k
is a convolution. With the sums of the items before and after an item, it gives the probability of
each of its counts given M.

**Sets.** The truth differs from the most probable counts in a *set* of moves (item, k). All sets of
up to four moves that agree with M and the check are found by a meet in the middle: half-sets of up
to two moves are sorted by what they add to the check. With the mass Z of all sets that have M, the
sets that were not found have about Z / p. All sets of one or two moves are tried, so those that
disagree have no part in Z and in the marginals. So

    posterior of a set  =  its weight / (weights of all sets that were found + Z / p)

If one has `MIN_READING_PROBABILITY`, it is the truth. Otherwise the marginals of all sets give the
most probable count of each item, and its mean squared error.

**Classes** of a one-shot sum have neither total nor check. Thinned counts show M modulo 32. Every M
that explains them e^10 times worse than the likeliest one, or better, is *plausible*, however
improbable it is by the prior. A count of several has no error only if M = 0 alone is plausible: a
true M is hidden so with probability e^-10 at most, whatever devices hold. The prior says which
items have the missing windows, and nothing else does: rises to 2,115 and to 21,165 have the same
sums modulo p = 21,157 as rises to 23,272 and to 8. A counter alone has no error if one M is
plausible.

If any one of 100 items may have changed by d windows, each has the mean squared error d^2 / 100,
and that one is ten such errors off. With probability P(k) of k windows,

    error^2  =  max(sum of P(k) k^2,  k^2 / 36 of all k with P(k) > 1e-4,  M^2 / 36 of plausible M)

So six errors reach each possible count: if 3 windows of 181 may be missing, no error is below 90.
If even the most probable M disagrees with the thinned counts, more windows are missing than are
tried, and the error is that number.

Source: weighing all possible counts, with their sum and a check as laws, is ours.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.thinned_counts import max_windows, squared_surprises
from protocol.numerics import special
from protocol.numerics.array_types import Flags, Floats, Indices, Integers

MIN_MEAN, _MIN_DEVIATION = 0.5, 0.5  # of usual counts
_MAX_SHAPE = 1e6  # of a negative binomial distribution; beyond, it is Poisson's
_CHANGED_SHARES = tuple(2.0**-power for power in range(10, 0, -1))  # values of h that are compared
_MIN_WEIGHT = 1e-280  # of a possible count
_MAX_LOG_MASS = 500.0  # beyond, sets of few moves have no part in it
_MIN_REST = 1e-9  # share of sets of more than two moves, which is exact to about 1e-12


@dataclass(frozen=True, slots=True)
class WindowPosterior:
    """Most probable counts of a group (n,), and their mean squared errors.

    Without errors they are the true ones. `expected_squares` has the errors that the prior expects,
    where a class's `squared_errors` also reach what is improbable.
    """

    counts: Integers
    squared_errors: Floats | None
    expected_squares: Floats | None = None


class GroupLaws(NamedTuple):
    """Weights of the check modulo `prime`, and what is missing.

    `windows` are missing from the total and `check` from the check of the counts that
    `read_windows` takes.
    """

    weights: Integers
    prime: int
    windows: int
    check: int

    def missing_after(
        self, moves: Integers, window: int, rows: Indices | slice = slice(None)
    ) -> tuple[int, int]:
        """Return the windows and the check that are missing after `moves` of the items `rows`."""
        checks = self.weights[rows] * (moves * window % self.prime) % self.prime
        return self.windows - int(moves.sum()), (self.check - int(checks.sum())) % self.prime


def read_windows(
    counts: Integers, window: int, means: Floats, deviations: Floats, laws: GroupLaws
) -> WindowPosterior:
    """Return the posterior of the true counts, which differ from `counts` by windows.

    In a large group only the counts that are most in doubt are weighed. The others are the most
    probable ones.
    """
    if len(counts) <= tuning.MAX_WEIGHED_COUNTS:
        return _weigh(counts, window, means, deviations, laws)
    shifts = _all_shifts()
    usual, changed = _priors(counts[:, np.newaxis] + window * shifts, means, deviations)
    prior = usual + changed * _CHANGED_SHARES[len(_CHANGED_SHARES) // 2]
    likely = shifts[prior.argmax(axis=1)]
    order = np.argsort(prior.max(axis=1) / prior.sum(axis=1), kind="stable")
    weighed, rest = np.split(order, [tuning.MAX_WEIGHED_COUNTS])
    missing = laws.missing_after(likely[rest], window, rest)
    laws = GroupLaws(laws.weights[weighed], laws.prime, *missing)
    read = _weigh(counts[weighed], window, means[weighed], deviations[weighed], laws)
    all_counts, errors = counts.copy(), np.zeros(len(counts))
    all_counts[rest] += likely[rest] * window
    all_counts[weighed] = read.counts
    if read.squared_errors is None:
        return WindowPosterior(all_counts, None)
    errors[weighed] = read.squared_errors
    away = (shifts - likely[rest][:, np.newaxis]) ** 2
    spread = (prior[rest] * away).sum(axis=1) / prior[rest].sum(axis=1)
    errors[rest] = spread * float(window) ** 2
    return WindowPosterior(all_counts, errors)


def read_thinned(
    counts: Integers,
    window: int,
    means: Floats,
    deviations: Floats,
    thinned: Integers,
    most: float = math.inf,
) -> WindowPosterior:
    """Return the posterior of the true counts of a class, which differ from `counts` by windows.

    `thinned` are the class's thinned counts modulo `window`, by level; its sum is up to `most`.
    """
    first = -min(int((counts // window).sum()), tuning.MAX_CLASS_WINDOWS)
    missing = np.arange(first, max_windows(int(counts.sum()), window, most) + 1)
    squares, logarithms = squared_surprises(counts.sum() + window * missing, window, thinned)
    shifts, surprises = _all_shifts(), squares + logarithms
    usual, changed = _priors(counts[:, np.newaxis] + window * shifts, means, deviations)
    odds = (surprises - surprises.min()) / 2
    is_plausible = odds < tuning.CLASS_LOG_ODDS
    best = _most_likely_sum(usual, changed, first, np.where(is_plausible, np.exp(-odds), 0))
    marginals = best.marginals()
    read = shifts[marginals.argmax(axis=1)]
    is_explained = squares[best.sums.argmax()] <= tuning.TABLE_SURPRISE
    doubt = (1 - marginals.max(axis=1)).sum()  # bounds the probability that a count is false
    is_certain = is_explained and doubt <= 1 - tuning.MIN_READING_PROBABILITY
    # Of several counters, nothing but the prior says whose windows are missing.
    off = missing[is_plausible] - (read if len(counts) == 1 else 0)
    if is_certain and not off.any():
        return WindowPosterior(counts + window * read, None)
    away = (shifts - read[:, np.newaxis]) ** 2
    least = np.where(marginals > 1e-4, away, 0).max(axis=1, initial=(off**2).max()) / 36
    if not is_explained:
        least[:] = (tuning.MAX_CLASS_WINDOWS + 1 - first) ** 2
    expected, square = (marginals * away).sum(axis=1), float(window) ** 2
    errors = np.maximum(expected, least) * square
    return WindowPosterior(counts + window * read, errors, expected * square)


def _weigh(
    counts: Integers, window: int, means: Floats, deviations: Floats, laws: GroupLaws
) -> WindowPosterior:
    """Return the posterior of all counts of a group."""
    shifts = _all_shifts()
    usual, changed = _priors(counts[:, np.newaxis] + window * shifts, means, deviations)
    best = _most_likely_sum(usual, changed, laws.windows, np.ones(1))
    shares = best.marginals()
    first, rows = shares.argmax(axis=1), np.arange(len(counts))
    weights = best.shares / best.shares[rows, first][:, np.newaxis]
    moves = _Moves.of(weights, first, shifts, window, laws)
    missing, off = laws.missing_after(shifts[first], window)
    sets, set_weights = _matching_sets(moves, missing, off, laws.prime)
    log_mass = best.log_mass - float(np.log(best.shares[rows, first]).sum())
    rest, log_rest = _without_few_moves(shares, log_mass, weights, first, missing)
    logarithms = np.append(set_weights, log_rest - math.log(laws.prime))
    probabilities = np.exp(logarithms - logarithms.max())
    probabilities /= probabilities.sum()
    marginals = probabilities[-1] * rest
    marginals[rows, first] += 1 - probabilities[-1]
    for moved, probability in zip(sets, probabilities[:-1].tolist(), strict=True):
        chosen = moved[moved >= 0]
        marginals[moves.rows[chosen], moves.columns[chosen]] += probability
        marginals[moves.rows[chosen], first[moves.rows[chosen]]] -= probability
    read = shifts[marginals.argmax(axis=1)]
    if len(sets) and probabilities[:-1].max() >= tuning.MIN_READING_PROBABILITY:
        return WindowPosterior(counts + window * read, None)
    squares = (shifts - read[:, np.newaxis]) ** 2
    errors = (np.maximum(marginals, 0) * squares).sum(axis=1) * float(window) ** 2
    return WindowPosterior(counts + window * read, errors)


def _all_shifts() -> Integers:
    """Return the windows by which a count may be off, in rising order."""
    return np.arange(-tuning.MAX_WINDOWS_BELOW, tuning.MAX_WINDOWS_ABOVE + 1)


def _priors(possible: Integers, means: Floats, deviations: Floats) -> tuple[Floats, Floats]:
    """Return the prior probabilities of usual and changed counts (n, k), 0 below 0."""
    counts = np.maximum(possible, 0).astype(np.float64)
    column = np.maximum(means, MIN_MEAN)[:, np.newaxis]
    variances = np.maximum(deviations, _MIN_DEVIATION)[:, np.newaxis] ** 2
    shapes = column**2 / np.maximum(variances - column, column**2 / _MAX_SHAPE)
    usual = np.exp(
        special.gammaln(counts + shapes)
        - special.gammaln(shapes)
        - special.gammaln(counts + 1)
        - shapes * np.log1p(column / shapes)
        - counts * np.log1p(shapes / column)
    )
    changed = column / np.maximum(column, counts) ** 2 / 2
    is_possible = possible >= 0
    return np.where(is_possible, usual, 0.0), np.where(is_possible, changed, 0.0)


def _most_likely_sum(
    usual: Floats, changed: Floats, first: int, likelihoods: Floats
) -> "_SumOfShifts":
    """Return the sum of shifts with the share of changed items that the round shows best."""
    best: _SumOfShifts | None = None  # one at a time: each may have tens of megabytes
    for share in _CHANGED_SHARES:
        each = _SumOfShifts.of((1 - share) * usual + share * changed, first, likelihoods)
        if best is None or each.log_likelihood > best.log_likelihood:
            best = each
    assert best is not None
    return best


@dataclass(frozen=True, slots=True)
class _SumOfShifts:
    """Probabilities of the shifts of each item (n, k), given `likelihoods` of sums from `first` on.

    `before` (n + 1, s) has the distributions of the sums of the items before each one. They are
    cut at `reach` to both sides of 0. `sums` has the weight of each sum.
    """

    shares: Floats
    before: Floats
    first: int
    likelihoods: Floats
    sums: Floats
    reach: int
    log_likelihood: float
    log_mass: float

    @classmethod
    def of(cls, weights: Floats, first: int, likelihoods: Floats) -> "_SumOfShifts":
        norms = weights.sum(axis=1, keepdims=True)
        end = first + len(likelihoods)
        shares, reach = weights / norms, max(abs(first), abs(end - 1)) + tuning.MAX_WINDOWS_ABOVE
        before = _sums_before(shares, tuning.MAX_WINDOWS_BELOW, reach)
        sums = before[-1, reach + first : reach + end] * likelihoods
        log_mass = math.log(max(float(sums.sum()), _MIN_WEIGHT))
        likelihood = float(np.log(norms).sum()) + log_mass
        return cls(shares, before, first, likelihoods, sums, reach, likelihood, log_mass)

    def marginals(self) -> Floats:
        """Return the probability of each shift of each item (n, k), given the sum."""
        below, size = tuning.MAX_WINDOWS_BELOW, self.shares.shape[1]
        after = _sums_before(self.shares[::-1], below, self.reach)[::-1]
        marginals = np.empty_like(self.shares)
        # The sums of all other items that a shift leaves, in the order of shifts.
        last = 2 * self.reach + self.first + len(self.likelihoods) - 1 + below
        for row, (early, late) in enumerate(zip(self.before[:-1], after[1:], strict=True)):
            others = np.convolve(np.convolve(early, late), self.likelihoods[::-1])
            others = np.pad(others, size)[: last + size + 1]
            marginals[row] = others[last + size - np.arange(size)]
        marginals = np.maximum(marginals * self.shares, _MIN_WEIGHT * self.shares)
        total = marginals.sum(axis=1, keepdims=True)
        return np.where(total > 0, marginals / np.maximum(total, _MIN_WEIGHT**2), self.shares)


def _sums_before(shares: Floats, below: int, reach: int) -> Floats:
    """Return the distributions of the sums of shifts before each item, and of all."""
    sums = np.zeros((len(shares) + 1, 2 * reach + 1))
    sums[0, reach] = 1.0
    for row, of_item in enumerate(shares):
        sums[row + 1] = np.convolve(sums[row], of_item)[below : below + 2 * reach + 1]
    return sums


def _without_few_moves(
    shares: Floats, log_mass: float, weights: Floats, first: Indices, missing: int
) -> tuple[Floats, float]:
    """Return the marginals (n, k) of all sets but those of up to two moves, and their log-mass.

    `shares` and `log_mass` are those of all sets that move `missing` windows.
    """
    if log_mass > _MAX_LOG_MASS:
        return shares, log_mass
    items, size = weights.shape
    rows, middle = np.arange(items), size - 1  # of no change
    places = np.arange(size) - first[:, np.newaxis] + middle
    by_change = np.zeros((items, 2 * size - 1))
    by_change[rows[:, np.newaxis], places] = weights
    by_change[:, middle] = 0
    others = missing + 2 * middle - np.arange(2 * size - 1)  # places of the rest of the change
    is_inside = (others >= 0) & (others < 2 * size - 1)
    neighbours = np.where(is_inside, by_change[:, others.clip(0, 2 * size - 2)], 0.0)
    pairs = by_change * (neighbours.sum(axis=0) - neighbours)
    singles = np.zeros_like(by_change)
    if abs(missing) < size:
        singles[:, missing + middle] = by_change[:, missing + middle]
    mass = math.exp(log_mass)
    few = float(singles.sum() + pairs.sum() / 2) + (missing == 0)
    rest = max(mass - few, _MIN_REST * mass)
    moved = shares * mass - np.take_along_axis(singles + pairs, places, axis=1)
    marginals = np.maximum(moved, 0) / rest
    marginals[rows, first] = 0
    stays = np.maximum(1 - marginals.sum(axis=1), 0)
    marginals[rows, first] = stays
    return marginals / marginals.sum(axis=1, keepdims=True), math.log(rest)


@dataclass(frozen=True, slots=True)
class _Moves:
    """Moves of items to other counts: rows and columns, windows, check, and log-weights (m,).

    The most probable come first.
    """

    rows: Indices
    columns: Indices
    windows: Integers
    checks: Integers
    weights: Floats

    @classmethod
    def of(
        cls, weights: Floats, first: Indices, shifts: Integers, window: int, laws: GroupLaws
    ) -> "_Moves":
        """Return the moves from the `first` counts; `weights` (n, k) are relative to these."""
        logarithms = np.log(np.maximum(weights, _MIN_WEIGHT))
        logarithms[np.arange(len(first)), first] = -np.inf
        order = np.argsort(-logarithms, axis=None, kind="stable")[: tuning.MAX_SINGLE_MOVES]
        order = order[logarithms.ravel()[order] > tuning.MIN_MOVE_WEIGHT]
        rows, columns = np.unravel_index(order, weights.shape)
        windows = shifts[columns] - shifts[first[rows]]
        checks = laws.weights[rows] * (windows * window % laws.prime) % laws.prime
        return cls(rows, columns, windows, checks, logarithms[rows, columns])


def _matching_sets(moves: _Moves, windows: int, off: int, prime: int) -> tuple[Integers, Floats]:
    """Return the sets of moves (s, 4) that add `windows` and `off`, and their log-weights (s,).

    -1 stands for no move.
    """
    singles = np.arange(-1, len(moves.rows))  # the first is none
    likely = min(len(moves.rows), tuning.MAX_PAIRED_MOVES)
    first, second = np.triu_indices(likely, 1)
    halves = np.concatenate(
        [
            np.stack([singles, np.full(len(singles), -1)], axis=1),
            np.stack([first, second], axis=1)[moves.rows[first] != moves.rows[second]],
        ]
    )
    added, checks, weights = (
        np.append(column, 0)[halves].sum(axis=1)
        for column in (moves.windows, moves.checks, moves.weights)
    )
    checks %= prime
    order = np.argsort(checks, kind="stable")
    wanted = (off - checks) % prime
    starts = np.searchsorted(checks[order], wanted, side="left")
    sizes = np.searchsorted(checks[order], wanted, side="right") - starts
    left = np.repeat(np.arange(len(halves)), sizes)
    offsets = np.arange(len(left)) - np.repeat(sizes.cumsum() - sizes, sizes)
    right = order[np.repeat(starts, sizes) + offsets]
    agrees = added[left] + added[right] == windows
    sets = np.sort(np.concatenate([halves[left[agrees]], halves[right[agrees]]], axis=1), axis=1)
    sums = (weights[left] + weights[right])[agrees]
    sets, places = np.unique(sets, axis=0, return_index=True)
    is_valid = _has_distinct_rows(moves.rows, sets)
    return sets[is_valid], sums[places][is_valid]


def _has_distinct_rows(rows: Indices, sets: Integers) -> Flags:
    """Return for each set whether it moves no item twice."""
    of_moves = np.where(sets >= 0, rows[np.maximum(sets, 0)], -1 - np.arange(sets.shape[1]))
    ordered = np.sort(of_moves, axis=1)
    distinct: Flags = (np.diff(ordered, axis=1) != 0).all(axis=1)
    return distinct
