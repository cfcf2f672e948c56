"""Questions and plans of TrieHH: the level of a round, its frontier, and the cells of its votes."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, StringConstraints, model_validator

from protocol.domains.base import Digits
from protocol.mechanisms.central.release_mechanism import ReleasePlan
from protocol.mechanisms.central.release_question import ReleaseQuestion
from protocol.numerics.array_types import DigitRows, Indices
from protocol.public_model import invalid
from protocol.quantiles.prefix_tree import (
    NO_PREFIX,
    digits_to_integers,
    find_prefixes,
    integers_to_digits,
)
from protocol.round_sizes import max_elements, message_bytes
from protocol.sketches.vote_table import VoteTable, VoteTableShape

MAX_TRIE_CELLS = 2**24
MAX_PREFIXES = 2**20
TABLE_FAILURE_DELTA_SHARE = 0.01  # fraction of delta, for tables that cannot be read whole
_HexPrefix = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2})*$", max_length=2048)]


class TrieHhQuestion(ReleaseQuestion):
    """Question for common strings, `stride` symbols per round; `truncate` cuts longer items.

    With `vote_tables`, votes are sent in a table (`trie_votes.py`) in rounds where it is smaller.
    """

    public_name: ClassVar[str] = "TrieHH"
    mechanism: Literal["triehh"] = "triehh"
    stride: int = Field(default=1, ge=1, le=8)
    truncate: bool = False
    vote_tables: bool = False

    @model_validator(mode="after")
    def _has_digits(self) -> Self:
        faults = []
        if not isinstance(self.domain, Digits) or self.domain.base > 256:
            faults.append(
                "triehh needs a domain of strings: an alphabet of up to 256 characters, or utf8"
            )
        if self.vote_tables and self.mode != "sample-threshold":
            faults.append(
                "vote_tables need mode sample-threshold: a table cannot be read under noise"
            )
        if self.vote_tables and self.join_probability < 1:
            faults.append(
                "vote_tables cannot be combined with a join_probability below 1: their failures "
                "are charged to parties that see no coin, but devices see coins"
            )
        if faults:
            raise invalid(faults)
        return self

    @property
    def table_failure_delta(self) -> float:
        return self.delta * TABLE_FAILURE_DELTA_SHARE if self.vote_tables else 0.0

    @property
    def levels(self) -> int:
        """Return the number of rounds after which the longest items are complete."""
        return -(-self.digits.width // self.stride)

    def canonical(self, item: str) -> str | None:
        whole = self.digits.truncate(item) if self.truncate else super().canonical(item)
        return None if whole is None or self.digits.contains_terminator(whole) else whole

    def digits_of(self, items: Sequence[str]) -> DigitRows:
        """Return the digits of `items`; ValueError if one is outside, or has a pad inside."""
        for item in items:
            if self.digits.contains_terminator(item):
                raise ValueError(f"{item!r} has a pad inside, so it is outside the domain of tries")
        return self.digits.digits_of(items)


class TrieHhPlan(ReleasePlan):
    """Plan of one level: devices vote for the digits that follow each prefix of `frontier`.

    The vector is one lane of all cells, or a vote table of `table_shape`.
    """

    mechanism: Literal["triehh"] = "triehh"
    question: TrieHhQuestion
    level: int = Field(ge=1, le=1024)
    frontier: tuple[_HexPrefix, ...] = Field(min_length=1, max_length=MAX_PREFIXES)
    table_shape: VoteTableShape | None = None

    @model_validator(mode="after")
    def _is_of_one_level(self) -> Self:
        if self.level > self.question.levels:
            raise ValueError(f"there are {self.question.levels} levels, not {self.level}")
        if any(len(prefix) != 2 * self.prefix_length for prefix in self.frontier):
            raise ValueError(f"level {self.level} has prefixes of {self.prefix_length} digits")
        if len(set(self.frontier)) < len(self.frontier):
            raise ValueError("a prefix is in the frontier twice")
        if int(self.prefixes.max(initial=0)) >= self.question.digits.base:
            raise ValueError(f"a digit of a prefix is not below {self.question.digits.base}")
        if self.table_shape is not None:
            if self.question.mode != "sample-threshold" or self.table_shape.bound != self.cells:
                raise ValueError(f"the vote table is not for {self.cells} cells without noise")
            ring = self.table_shape.ring(self.terms.moduli)
            if message_bytes(self.terms, ring) > self.question.message_bytes:
                raise ValueError("the vote table does not fit in the message")
        elif self.cells > min(MAX_TRIE_CELLS, self.max_fitting_cells):
            raise ValueError(
                f"{self.cells} cells modulo {self.cell_modulus} do not fit in the message"
            )
        self.check_noise(self.cells)
        return self

    @property
    def prefix_length(self) -> int:
        return (self.level - 1) * self.question.stride

    @property
    def node_length(self) -> int:
        """Return the number of digits of a node of this level."""
        return min(self.prefix_length + self.question.stride, self.question.digits.width)

    @property
    def cells_per_prefix(self) -> int:
        return int(self.question.digits.base ** (self.node_length - self.prefix_length))

    @property
    def cells(self) -> int:
        """Return the number of cells of all prefixes, which are stored prefix by prefix."""
        return len(self.frontier) * self.cells_per_prefix

    @property
    def max_fitting_cells(self) -> int:
        """Return the largest number of cells in a lane that fits in the message."""
        return max_elements(self.terms, self.question.message_bytes, self.cell_modulus)

    @property
    def vote_table(self) -> VoteTable | None:
        """Return the table of the votes; None if the vector is a lane of all cells."""
        if self.table_shape is None:
            return None
        return VoteTable(self.table_shape, bytes.fromhex(self.seed), self.terms.moduli)

    @property
    def prefixes(self) -> DigitRows:
        """Return the frontier as rows of digits."""
        joined = bytes.fromhex("".join(self.frontier))
        return np.frombuffer(joined, np.uint8).reshape(len(self.frontier), self.prefix_length)

    def cells_of(self, rows: DigitRows) -> Indices:
        """Return the cell that each item votes for; `NO_PREFIX` if its prefix was pruned."""
        place = find_prefixes(rows, self.prefixes)
        following = digits_to_integers(
            rows[:, self.prefix_length : self.node_length], self.question.digits.base
        )
        return np.where(place == NO_PREFIX, NO_PREFIX, place * self.cells_per_prefix + following)

    def nodes_at(self, cells: Indices) -> DigitRows:
        """Return the nodes of `cells` as rows of digits, as wide as items."""
        place, following = np.divmod(cells, self.cells_per_prefix)
        rows = np.zeros((len(cells), self.question.digits.width), np.uint8)
        rows[:, : self.prefix_length] = self.prefixes[place]
        base, count = self.question.digits.base, self.node_length - self.prefix_length
        rows[:, self.prefix_length : self.node_length] = integers_to_digits(following, base, count)
        return rows
