"""Study of a user's own file: the question follows from its items, and the size from its users.

| items of the file                     | without epsilon          | with epsilon             |
|---|---|---|
| numbers                               | `number-sums`: the mean  | `hierarchical-histogram` |
| few different texts (`MAX_OPTIONS`)   | `tracked`, listed        | `count-median`, listed   |
| other texts                           | `tracked`                | `count-median`, listed   |

With epsilon, counts have noise. 300 devices are too few to find texts that nobody can list
(`triehh`), so the question lists those of the file.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from blindtally.console.presets import fitting_bytes, lowest_threshold, preset_fields
from blindtally.console.terminal import print_line
from blindtally.datasets.cells import DECIMAL_COMMA
from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.datasets.guesses import guess_dataset
from blindtally.datasets.reader import Dataset
from blindtally.fleet_run.fleet_setup import (
    SEATS_FOR_PEOPLE,
    TIMEOUTS,
    FleetSetup,
    bytes_for_table,
    checked_setup,
    default_threshold,
    fleet_terms,
    new_operators,
    new_registrar,
    question_about,
    waiting_for_people,
)
from blindtally.planning.recommended_size import choose_size
from client.fleet.config_and_results import FleetConfig
from protocol.description import AnswerKind
from protocol.device_policy.plan_check import default_refusals
from protocol.domains.hashed import Hashed
from protocol.domains.known_items import KnownItems, number_in
from protocol.domains.strings import Utf8
from protocol.mechanisms.registry import MECHANISMS, mechanism_of, parse_question
from protocol.printable import printable
from protocol.question_and_plan import SumKind, Terms

MIN_USERS: Final = 20  # a smaller sum hides a device among few others
MAX_USERS: Final = 300  # on a small machine they take half a minute
MAX_OPTIONS: Final = 12  # different texts that an analyst could have listed
MAX_CONTRIBUTION: Final = 10  # items of a device
# Later rounds count the common texts in few words.
MAX_ROUNDS: Final = 4
MAX_TEXT_BYTES: Final = 40  # longer texts are hashed, and later rounds fetch them
# A sum has at least this share of the devices.
MIN_SHARE: Final = 0.9
IDLE_SECONDS: Final = 5.0  # on a slow machine no device is left out
ALPHA, LEVELS, EXACT_LEVELS = 4, 5, 10  # 1,024 cells for a range of numbers, or a million
# A table has room for all that devices hold, and as much again.
SIZE_FACTOR: Final = 2
# Most numbers are spread over so many cells.
MIN_CELLS: Final = 100
MAX_NAME: Final = 60  # characters of a column in the name of the study
_CODE: Final = re.compile(
    r"(.*[\W_])?(id|code|no|number|sku|zip|plz|status)|(post|zip)code", re.IGNORECASE
)
_LEADING_ZERO: Final = re.compile(r"0\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Wishes for a study of the file at `path`; the others follow from the file."""

    path: Path
    column: str | None = None
    users: int | None = None
    threshold: float | None = None
    epsilon: float | None = None
    kind: SumKind = "pairwise"
    join: bool = False  # people, whom no registrar knows, may take part in the one round
    seed: int = 4

    def setup(self) -> FleetSetup:
        """Return the study and its devices.

        Raises:
            ValueError: if the file cannot be read or has too few users, or no such study can exist.
        """
        dataset, report = guess_dataset(self.path, self.column)
        for line in report.lines():
            print_line(line, err=True)
        known = len(dataset) if isinstance(dataset, DeviceHistograms) else MAX_USERS
        users = min(known, self.users or MAX_USERS)
        if known < MIN_USERS:
            raise ValueError(f"{self.path} has {known:,} users: at least {MIN_USERS} are needed")
        column = report.columns.get("item") or "words"
        shown = printable(" ".join(column.split()))[:MAX_NAME]
        fields = self._fields(dataset, column, users)
        is_open = isinstance(fields["domain"], Hashed | Utf8)  # an analyst cannot list the texts
        rounds = min(MAX_ROUNDS, users // MIN_USERS) if is_open and not self.join else 1
        registrar = None if self.join else new_registrar()
        operators, seats = new_operators(self.kind), SEATS_FOR_PEOPLE if self.join else 0
        config = FleetConfig(
            users // rounds, seed=self.seed, registrar=registrar, operators=operators
        )
        # No device drops out, so that a round waits for nearly all of them.
        minimum = math.ceil(MIN_SHARE * config.devices)
        terms = fleet_terms(config, seats=seats).model_copy(update={"minimum": minimum})
        question = parse_question(fields | _chosen_fields(fields, terms, rounds))
        setup = checked_setup(question, terms, rounds, config, dataset, report)
        mechanism = mechanism_of(question)
        plan = mechanism.first_plan(question, terms, "try", rounds, Random(0))
        for refusal in default_refusals(plan):
            print_line(
                f"Real devices would refuse this study by default: it {refusal.reason}.", err=True
            )
        kind = mechanism.answer_kind(question)
        name = {
            AnswerKind.MEANS: f"What is the mean {shown} of {users:,} devices?",
            AnswerKind.DISTRIBUTION: f"What is the median {shown} of {users:,} devices?",
        }.get(kind, question_about(f"values of {shown}", question.threshold, users))
        timeouts = TIMEOUTS.model_copy(update={"idle": IDLE_SECONDS})
        return waiting_for_people(replace(setup, timeouts=timeouts, name=name), seats)

    def _fields(self, dataset: Dataset, column: str, users: int) -> dict[str, Any]:
        """Return the fields of the question that follow from the items of the column."""
        items, has_noise = dataset.items, self.epsilon is not None
        known = KnownItems(items=items, devices=users, rounds=1)
        loss = preset_fields(None, None, None, self.epsilon)
        noise = loss | {"contribution": 1} if has_noise else {}
        if _are_numbers(items, column):
            mechanism = "hierarchical-histogram" if has_noise else "number-sums"
            interval = known.interval(ALPHA, LEVELS if has_noise else EXACT_LEVELS)
            if not has_noise:
                _check_spread([number_in(item) or 0.0 for item in items])
            return {"mechanism": mechanism, "domain": interval, "threshold": 5} | noise
        fields: dict[str, Any] = {"threshold": self.threshold or default_threshold(users)}
        fields |= noise
        if has_noise:
            return fields | {"mechanism": "count-median", "domain": known.dictionary()}
        most = max(map(len, dataset)) if isinstance(dataset, DeviceHistograms) else 1
        fields |= {"mechanism": "tracked", "contribution": min(most, MAX_CONTRIBUTION)}
        if 1 < len(items) <= MAX_OPTIONS:
            return fields | {"domain": known.dictionary()}
        kind = Utf8 if known.longest <= MAX_TEXT_BYTES else Hashed
        return fields | {"domain": kind(max_bytes=known.longest)}


def _are_numbers(items: Sequence[str], column: str) -> bool:
    """Return whether items are numbers to add up: many different ones, and no codes.

    Raises:
        ValueError: if they have decimal commas.
    """
    if len(items) <= MAX_OPTIONS or _CODE.fullmatch(column):
        return False
    if any(map(_LEADING_ZERO.fullmatch, items)):
        return False
    commas = [item for item in items if DECIMAL_COMMA.fullmatch(item)]
    if commas and all(number_in(item.replace(",", ".")) is not None for item in items):
        raise ValueError(f"{commas[0]!r} has a decimal comma: save the numbers with points")
    others = [item for item in items if number_in(item) is None]
    if 0 < len(others) < len(items) / 10:
        print_line(
            f"{others[0]!r} in {column} is no number, so all its values are asked for as texts; "
            "without such rows, numbers would be.",
            err=True,
        )
    return not others and len({number_in(item) for item in items}) > MAX_OPTIONS


def _check_spread(numbers: Sequence[float]) -> None:
    """Refuse numbers of which most would be one cell, because a few are far from them."""
    low, middle_low, middle_high, high = np.quantile(numbers, [0, 0.05, 0.95, 1])
    if (high - low) / ALPHA**EXACT_LEVELS > (middle_high - middle_low) / MIN_CELLS:
        raise ValueError(
            f"most numbers are from {middle_low:g} to {middle_high:g}, and all from {low:g} to "
            f"{high:g}: leave out those that measure nothing, or add --epsilon 1 for the median"
        )


def _chosen_fields(fields: Mapping[str, Any], terms: Terms, rounds: int) -> dict[str, Any]:
    """Return the size of a device's message, and with noise the lowest threshold, if it is higher.

    Raises:
        ValueError: if no such study can exist.
    """
    mechanism = MECHANISMS[fields["mechanism"]]
    if "message_bytes" not in mechanism.question_type.model_fields:
        return {}
    if mechanism.name != "count-median":
        size = bytes_for_table(fields, terms, SIZE_FACTOR * fields.get("contribution", 1))
        with suppress(ValueError):  # it is for texts, and for thresholds that its items reach
            question = parse_question({**fields, "message_bytes": size})
            size, _ = choose_size(question, terms, rounds)
        return {"message_bytes": size}
    fields = {**fields, "message_bytes": fitting_bytes(fields, terms)}
    return {"message_bytes": fields["message_bytes"], "threshold": lowest_threshold(fields, terms)}
