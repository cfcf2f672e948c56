"""Which strings a round fetches, and how many: what is left of the words beside counters and table.

Counters may take `COUNTED` of a round's bytes. Of those beside them strings take some, a single
piece more of them; and of all bytes so many are sure, whatever the counters take, that pieces of
one size, the same for the whole study, can fetch the longest string in its rounds. Pieces go to
what will be heavy, the heaviest first, in twice as many as bring all strings in by the end.
"""

import math
from dataclasses import dataclass

from protocol.hashed import Hashed
from protocol.mechanism import WORD_BITS, SumQuestion, Terms
from protocol.mechanisms.counters import Counters
from protocol.mechanisms.outlook import Outlook, is_ending, likely_heavy
from protocol.mechanisms.strings import NUMBER_BYTES, Fetch, Fetches, Strings, numbers_for
from protocol.mechanisms.tables import too_few

COUNTED = 0.75  # of the bytes that counters may take
_FETCHED = 0.1  # of the bytes beside the counters that strings may take
_NEEDED = 0.3  # if all strings would not be there by the end without
_LAST_FETCHED = 0.4  # in the last quarter, when what is new will hardly be heavy any more
_PACE, _LAST_PACE = 1.25, 2.0  # times what brings all strings in by the end
_ONE_FETCHED = 0.5  # of those bytes that a single piece may take
_LEAST_FETCHED = _ONE_FETCHED * (1 - COUNTED)  # of all bytes, whatever the counters take


@dataclass(frozen=True, slots=True)
class Fetching:
    """How the strings of a study of `rounds` rounds are fetched, if it has any."""

    question: SumQuestion
    terms: Terms
    rounds: int

    @property
    def least_words(self) -> int:
        """Return the words that fetch the longest string from the second round on; 0 if none is."""
        domain = self.question.domain
        if not isinstance(domain, Hashed):
            return 0
        least = -(-domain.max_bytes // (NUMBER_BYTES * max(1, self.rounds - 1)))
        one = Fetches((Fetch(name="", piece=0),), self._most, least)
        return math.ceil(8 * one.lane.nbytes / _LEAST_FETCHED / WORD_BITS)

    def check_words(self) -> None:
        """Raise ValueError if the question's words are fewer; says how many are needed."""
        domain, least = self.question.domain, self.least_words
        if isinstance(domain, Hashed) and self.question.words < least:
            purpose = f"to fetch strings of {domain.max_bytes} bytes in {self.rounds} rounds"
            raise ValueError(f"{too_few(self.question, purpose, least)}, or fewer max_bytes")

    def pieces(self, wanted: tuple[Fetch, ...]) -> Fetches:
        """Return the pieces of a round that fetches what is `wanted`."""
        return Fetches(wanted, self._most, self._numbers)

    def following(self, outlook: Outlook, counters: Counters, nbytes: int, table: int) -> Fetches:
        """Return the next pieces of the strings of items that will be heavy, the heaviest first.

        `nbytes` are what counters leave for them and a table, which takes `table` at least.
        """
        domain = self.question.domain
        if not isinstance(domain, Hashed) or not counters.items:
            return self.pieces(())
        strings, numbers = Strings.of(domain, outlook.tally), self._numbers
        missing = [name for name in likely_heavy(outlook) if name in counters.rows]
        missing = [name for name in missing if name not in strings.whole]
        wanted = self.pieces(tuple(strings.next_piece(name, numbers) for name in missing))
        one = min(1, wanted.fitting(int(_ONE_FETCHED * nbytes)))
        ends, left = is_ending(outlook.plan), max(1, self.rounds - outlook.plan.round)
        to_come = len(missing) * strings.pieces(numbers)
        # What brings them in by the end they need, more is for what may go wrong.
        needed = min(math.ceil(to_come / left), wanted.fitting(int(_NEEDED * nbytes)))
        usual = wanted.fitting(int((_LAST_FETCHED if ends else _FETCHED) * nbytes))
        fitting = min(max(one, needed, usual), wanted.fitting(max(0, nbytes - table)))
        pace = math.ceil((_LAST_PACE if ends else _PACE) * to_come / left)
        return self.pieces(wanted.wanted[: min(fitting, pace)])

    @property
    def _numbers(self) -> int:
        """Return the numbers of a piece; one fits whatever the counters take."""
        domain = self.question.domain
        if not isinstance(domain, Hashed):
            return 1
        bits = Fetches((), self._most, 1).lane.bits
        fitting = int(8 * _LEAST_FETCHED * self.question.nbytes) // bits
        return max(1, min(numbers_for(domain, self.rounds), fitting))

    @property
    def _most(self) -> int:
        return self.terms.devices * self.question.contribution
