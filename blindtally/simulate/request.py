"""Options of `blindtally simulate` as one request, and the options that each mechanism takes."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from protocol.mechanisms.registry import REPORT_MECHANISMS
from protocol.oracles.parameters import depends_on_goal, uses_frequency_bound
from protocol.oracles.registry import ORACLES
from protocol.privacy.release import ReleaseMode
from protocol.study import SumQuestion
from secagg.parameters import Mode

# Mechanisms that release counts with central privacy, with the default of --levels and --release.
RELEASE_DEFAULTS: Final[dict[str, tuple[int, ReleaseMode]]] = {
    "triehh": (10, "sample-threshold"),
    "hierarchical-histogram": (8, "noise"),
}
_DEFAULT_DELTA: Final = 1e-6
_DEFAULT_THRESHOLD: Final = 50.0
_COMMON_REPORT_OPTIONS: Final = {
    *("mechanism", "data", "column", "clients", "epsilon", "threshold", "confidence"),
    *("sets", "seed", "json_path", "workers", "dask"),
}
_REPORT_ONLY_OPTIONS: Final = {"confidence", "goal", "most"}
_RELEASE_ONLY_OPTIONS: Final = {"epsilon", "delta", "levels", "low", "high", "release", "invited"}
_WORKER_OPTIONS: Final = {"workers", "dask"}
# A task must take half a second or more to be worth sending to a worker (docs/scaling.md).
_WHY_TRIE_IS_NOT_SHARED: Final = (
    "a level of 10,000,000 devices takes a tenth of a second, which is not worth sharing"
)
_WHY_NUMBERS_ARE_NOT_SHARED: Final = (
    "the time of a round does not grow with its devices, so there is nothing to share"
)
# Fields that --set does not take: an option or the command itself sets them.
_RESERVED_FIELDS: Final = {
    *SumQuestion.model_fields,
    *("epsilon", "delta", "join_probability", "goal", "max_frequency"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """Values of the options, in the command's order; each mechanism reads those that it takes."""

    mechanism: str
    data: Path
    column: str | None = None
    rounds: int = 30
    clients: int = 10_000
    threshold: float | None = None
    confidence: float = 0.5
    words: int | None = None
    contribution: int = 1
    alphabet: str | None = None
    length: int | None = None
    secagg: bool = False
    corrupt: float = 0.1
    dropout: float = 0.0
    mode: Mode = "active"
    epsilon: float = 1.0
    delta: float | None = None
    levels: int | None = None
    low: float | None = None
    high: float | None = None
    release: ReleaseMode | None = None
    invited: float = 1.0
    goal: str = "l2"
    most: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 1
    workers: int = 1
    dask: str | None = None

    @property
    def sum_threshold(self) -> float:
        """Return the threshold of a mechanism that sums."""
        return _DEFAULT_THRESHOLD if self.threshold is None else self.threshold

    @property
    def central_delta(self) -> float:
        """Return the delta of all releases."""
        return _DEFAULT_DELTA if self.delta is None else self.delta

    @property
    def release_levels(self) -> int:
        """Return the levels of a tree of released counts."""
        return self.levels or RELEASE_DEFAULTS[self.mechanism][0]

    @property
    def release_mode(self) -> ReleaseMode:
        """Return the way in which counts are released."""
        return self.release or RELEASE_DEFAULTS[self.mechanism][1]

    @property
    def is_of_numbers(self) -> bool:
        """Return whether the items are numbers: for a histogram always, for a trie in a range."""
        is_trie = self.mechanism == "triehh"
        is_ranged = self.low is not None or self.high is not None
        return self.mechanism in RELEASE_DEFAULTS and (is_ranged or not is_trie)

    def source(self) -> dict[str, Any]:
        """Return the fields that every JSON document of a simulation has under `parameters`."""
        return {"data": str(self.data), "column": self.column, "seed": self.seed}


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Return the fields of --set: a value is JSON, or else the text itself.

    Raises:
        ValueError: if a pair has no value, or an option of the command sets its field.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name in _RESERVED_FIELDS:
            raise ValueError(f"--set takes name=value of a mechanism's own field, got {pair!r}")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def accepted_options(
    request: SimulationRequest, all_options: set[str]
) -> tuple[set[str], str, dict[str, str]]:
    """Return the options that the mechanism takes, who takes them, and reasons by other options."""
    name = request.mechanism
    simulation = f"a simulation of {name}"
    if name in REPORT_MECHANISMS:
        if name == "prefix-extension":
            simulation += ", of strings of any characters,"
        return _COMMON_REPORT_OPTIONS | _report_options_of(name), simulation, {}
    if name not in RELEASE_DEFAULTS:
        return all_options - _REPORT_ONLY_OPTIONS - _RELEASE_ONLY_OPTIONS, simulation, {}
    accepted = all_options - _REPORT_ONLY_OPTIONS - _WORKER_OPTIONS
    if request.is_of_numbers:
        reason = _WHY_NUMBERS_ARE_NOT_SHARED
        accepted -= {"invited"}
        simulation += " over numbers"
    else:
        reason = _WHY_TRIE_IS_NOT_SHARED
    return accepted, simulation, dict.fromkeys(_WORKER_OPTIONS, reason)


def _report_options_of(mechanism: str) -> set[str]:
    if mechanism == "prefix-extension":
        return {"length"}
    options = {"length", "alphabet"}
    if mechanism not in ORACLES:
        return options | {"delta"}
    options |= {"most"} if uses_frequency_bound(mechanism) else set()
    return options | ({"goal"} if depends_on_goal(mechanism) else set())
