"""Choice of the strings that a round fetches, in the bytes that counters and table leave.

Counters may take `MAX_COUNTER_BYTES_SHARE` of a round's bytes. Strings take a share of the
other bytes, or more if that share holds no piece. A share of all bytes is guaranteed, regardless of
the counters. The size of a piece is the same for the whole study, and such that the guaranteed
share can fetch the longest string in the rounds of the study. Items that will be heavy are fetched
first, the heaviest before the others, at `FETCH_RATE` times the rate that completes all strings
by the end.
"""

import math
from dataclasses import dataclass

from protocol.domains.hashed import Hashed
from protocol.mechanisms.iblt.sampled_table import too_few_words
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.counters import Counters
from protocol.mechanisms.tracked.forecast import Forecast, is_near_end, likely_heavy
from protocol.mechanisms.tracked.string_fetching import (
    NUMBER_BYTES,
    KnownStrings,
    StringPiece,
    StringPieces,
    piece_numbers,
)
from protocol.study import WORD_BITS, SumQuestion, Terms


@dataclass(frozen=True, slots=True)
class FetchSchedule:
    """Fetching of the strings of a study of `rounds` rounds, if its domain is hashed."""

    question: SumQuestion
    terms: Terms
    rounds: int

    @property
    def min_words(self) -> int:
        """Return the words that fetch the longest string after round 1; 0 without strings."""
        domain = self.question.domain
        if not isinstance(domain, Hashed):
            return 0
        numbers = -(-domain.max_bytes // (NUMBER_BYTES * max(1, self.rounds - 1)))
        piece = StringPieces((StringPiece(name="", piece=0),), self._max_count, numbers)
        return math.ceil(8 * piece.lane.nbytes / tuning.GUARANTEED_STRING_BYTES_SHARE / WORD_BITS)

    def check_words(self) -> None:
        """Raise ValueError if the question has fewer words; the text has the number needed."""
        domain, needed = self.question.domain, self.min_words
        if isinstance(domain, Hashed) and self.question.words < needed:
            purpose = f"to fetch strings of {domain.max_bytes} bytes in {self.rounds} rounds"
            raise ValueError(f"{too_few_words(self.question, purpose, needed)}, or fewer max_bytes")

    def pieces_of(self, wanted: tuple[StringPiece, ...]) -> StringPieces:
        """Return the pieces of a round that fetches `wanted`."""
        return StringPieces(wanted, self._max_count, self._piece_numbers)

    def next_pieces(
        self, forecast: Forecast, counters: Counters, nbytes: int, min_table_bytes: int
    ) -> StringPieces:
        """Return the next pieces of strings of items that will be heavy, the heaviest first.

        The counters leave `nbytes` for pieces and a table, which takes `min_table_bytes` or more.
        """
        domain = self.question.domain
        if not isinstance(domain, Hashed) or not counters.items:
            return self.pieces_of(())
        strings, numbers = KnownStrings.from_state(domain, forecast.state), self._piece_numbers
        missing = [name for name in likely_heavy(forecast) if name in counters.rows]
        missing = [name for name in missing if name not in strings.complete]
        wanted = self.pieces_of(tuple(strings.next_piece(name, numbers) for name in missing))
        single = min(1, wanted.pieces_in_bytes(int(tuning.MAX_PIECE_BYTES_SHARE * nbytes)))
        near_end = is_near_end(forecast.plan)
        rounds_left = max(1, self.rounds - forecast.plan.round)
        pieces_left = len(missing) * strings.expected_pieces(numbers)
        # Pieces that are needed to finish by the end; more than these are for failures.
        late_bytes = int(tuning.STRING_BYTES_SHARE_IF_LATE * nbytes)
        needed = min(math.ceil(pieces_left / rounds_left), wanted.pieces_in_bytes(late_bytes))
        share = tuning.STRING_BYTES_SHARE_NEAR_END if near_end else tuning.STRING_BYTES_SHARE
        usual = wanted.pieces_in_bytes(int(share * nbytes))
        fitting = wanted.pieces_in_bytes(max(0, nbytes - min_table_bytes))
        rate = tuning.FETCH_RATE_NEAR_END if near_end else tuning.FETCH_RATE
        useful = math.ceil(rate * pieces_left / rounds_left)
        return self.pieces_of(wanted.pieces[: min(max(single, needed, usual), fitting, useful)])

    @property
    def _piece_numbers(self) -> int:
        """Return the numbers of a piece, so that one piece always fits."""
        domain = self.question.domain
        if not isinstance(domain, Hashed):
            return 1
        bits = StringPieces((), self._max_count, 1).lane.bits
        fitting = int(8 * tuning.GUARANTEED_STRING_BYTES_SHARE * self.question.nbytes) // bits
        return max(1, min(piece_numbers(domain, self.rounds), fitting))

    @property
    def _max_count(self) -> int:
        return self.terms.max_devices * self.question.contribution
