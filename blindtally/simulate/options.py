"""Options of `blindtally simulate` as one request, and the options that each mechanism takes."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from typer import Argument, Option

from blindtally.console.mechanism_catalogue import CATALOGUE
from blindtally.console.options import (
    ColumnOption,
    ContributionOption,
    DaskOption,
    MaxShareOption,
    ModeOption,
    SeedOption,
    StopAtOption,
    WorkersOption,
    complete_data,
    complete_mechanism,
    parse_field,
)

DomainChoice = Literal["auto", "alphabet", "utf8", "hashed"]
DriftKind = Literal["none", "gradual", "sudden", "late", "crowds", "weekly", "bursts"]
ReleaseChoice = Literal["sample-threshold", "noise", "both"]
SumChoice = Literal["pairwise", "one-shot"]
# Mechanisms that release counts with central privacy, with the default of --levels and --release.
RELEASE_DEFAULTS: Final[dict[str, tuple[int, ReleaseChoice]]] = {
    "triehh": (10, "sample-threshold"),
    "hierarchical-histogram": (8, "noise"),
}
_DEFAULT_DELTA: Final = 1e-6
_DEFAULT_THRESHOLD: Final = 50.0
_COMMON_REPORT_OPTIONS: Final = {
    *("mechanism", "data", "column", "devices", "epsilon", "threshold", "confidence"),
    *("sets", "seed", "json_path", "workers", "dask"),
}
_REPORT_ONLY_OPTIONS: Final = {"goal", "most"}
# Options of studies of several rounds that sum tables of items.
_TABLE_ONLY_OPTIONS: Final = {
    *("domain", "drift", "devices_by_round", "lost_rounds", "stop_at", "sum_kind"),
}
_NUMBER_SUMS_OPTIONS: Final = {
    *(
        "mechanism",
        "data",
        "column",
        "rounds",
        "devices",
        "threshold",
        "words",
        "secagg",
        "sum_kind",
    ),
    *("corrupt", "dropout", "mode", "levels", "low", "high", "sets", "seed", "json_path"),
}
_RELEASE_ONLY_OPTIONS: Final = {"epsilon", "delta", "levels", "low", "high", "release", "invited"}
_WORKER_OPTIONS: Final = {"workers", "dask"}
# A task must take half a second or more to be worth sending to a worker (docs/scaling.md).
_WHY_TRIE_IS_NOT_SHARED: Final = (
    "a level of 10,000,000 devices takes a tenth of a second, which is not worth sharing"
)
_WHY_NUMBERS_ARE_NOT_SHARED: Final = (
    "the time of a round does not grow with its devices, so there is nothing to share"
)
# Fields that --set does not take, in addition to those of all sums: an option or the command
# itself sets them.
_RESERVED_FIELDS: Final = {"epsilon", "delta", "join_probability", "goal", "max_frequency"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """Arguments and options of the command; each mechanism reads those that it takes."""

    mechanism: Annotated[
        str,
        Argument(
            help=f"One of: {', '.join(chain(*CATALOGUE.values()))}; see `blindtally mechanisms`.",
            autocompletion=complete_mechanism,
        ),
    ]
    data: Annotated[
        Path,
        Option(
            help="CSV of item,count or user,item,count; baskets; or a bundled data set: "
            "link_user_domains, words, short, ages.",
            autocompletion=complete_data,
        ),
    ]
    column: ColumnOption = None
    rounds: Annotated[
        int, Option(min=1, max=10_000, help="Number of rounds (R); reports have one.")
    ] = 30
    devices: Annotated[int, Option(min=3, help="Number of devices in a round (n).")] = 10_000
    devices_by_round: Annotated[
        str | None,
        Option(
            metavar="N,N,...",
            help="Numbers of devices in rounds that differ, instead of --devices; repeated until "
            "the last round.",
        ),
    ] = None
    lost_rounds: Annotated[
        str | None,
        Option(
            metavar="NUMBER",
            help="Number of rounds that fail, drawn at random, or the rounds themselves with "
            "commas: 2,5 or 7, for one.",
        ),
    ] = None
    drift: Annotated[
        DriftKind,
        Option(
            help="Change of the items over the rounds: gradual or sudden to others, late (new "
            "items appear), weekly or bursts (of a fifth of the items), or crowds (in every second "
            "week of rounds a third of the devices)."
        ),
    ] = "none"
    threshold: Annotated[
        float | None,
        Option(
            min=1,
            max=1e12,
            help="Total count over all rounds from which an item is heavy.",
            show_default="50; with reports, a count that noise alone rarely reaches",
        ),
    ] = None
    confidence: Annotated[
        float,
        Option(
            min=0.01, max=0.999, help="Confidence that an item is heavy from which it is reported."
        ),
    ] = 0.5
    stop_at: StopAtOption = None
    words: Annotated[
        int | None,
        Option(
            min=1,
            help="Maximum number of 16-bit words that a device sends in a round.",
            show_default="2000; with triehh 65536",
        ),
    ] = None
    contribution: ContributionOption = 1
    domain: Annotated[
        DomainChoice,
        Option(
            help="Keys of the items: whole strings (alphabet, utf8), hashes whose strings tracked "
            "fetches later (hashed), or the cheapest for the data (auto)."
        ),
    ] = "auto"
    alphabet: Annotated[str | None, Option(help="Characters of the items.")] = None
    length: Annotated[
        int | None,
        Option(
            min=1, max=1024, help="Maximum length of an item in bytes, or characters of --alphabet."
        ),
    ] = None
    secagg: Annotated[
        bool, Option("--secagg", help="Run secure sums with every message of the protocol.")
    ] = False
    sum_kind: Annotated[
        SumChoice,
        Option(
            "--sum",
            help="Protocol of --secagg: pairwise masks among the devices of a cohort, or one "
            "message per device to a committee of seven operators, which opens the sum.",
        ),
    ] = "pairwise"
    corrupt: Annotated[float, Option(help="Fraction of corrupt devices.")] = 0.1
    dropout: Annotated[float, Option(help="Fraction of devices that drop out.")] = 0.0
    mode: ModeOption = "active"
    epsilon: Annotated[
        float, Option(help="Privacy loss of a report, or of all released counts.")
    ] = 1.0
    delta: Annotated[
        float | None,
        Option(help="Delta of --epsilon.", show_default="1e-6 for released counts, 0 for reports"),
    ] = None
    levels: Annotated[
        int | None,
        Option(
            min=1,
            max=256,
            help="Levels of the tree, with one symbol or digit per level.",
            show_default="10, with hierarchical-histogram 8, with number-sums 4",
        ),
    ] = None
    low: Annotated[
        float | None, Option(help="Lower end of the interval, if items are numbers.")
    ] = None
    high: Annotated[float | None, Option(help="Upper end of the interval.")] = None
    release: Annotated[
        ReleaseChoice | None,
        Option(
            help="Release of counts: by coins (sample-threshold), by noise shares, which also hide "
            "devices from the server (noise), or by both.",
            show_default="sample-threshold with triehh, else noise",
        ),
    ] = None
    invited: Annotated[
        float,
        Option(help="Join probability of a device at each level of triehh over strings."),
    ] = 1.0
    goal: Annotated[Literal["worst-mse", "l2"], Option(help="Error of reports to minimise.")] = "l2"
    most: MaxShareOption = 1.0
    sets: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="Field of the mechanism's question, such as t=5 (docs/mechanisms.md); repeatable.",
        ),
    ] = None
    seed: SeedOption = 1
    workers: WorkersOption = 1
    dask: DaskOption = None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the fields of --set.

        Raises:
            ValueError: if a pair has no value, or an option of the command sets its field.
        """
        from protocol.mechanisms.frequency_sketches import FrequencySketchName
        from protocol.question_and_plan import SumQuestion

        reserved = {*SumQuestion.model_fields, *_RESERVED_FIELDS}
        if self.mechanism in get_args(FrequencySketchName):
            reserved -= {"epsilon", "delta"}  # exact counts are their default, so no option
        settings: dict[str, Any] = {}
        for pair in self.sets or []:
            name, value = parse_field(pair)
            if name in reserved:
                raise ValueError(f"--set takes NAME=VALUE of a mechanism's own field, got {pair!r}")
            settings[name] = value
        return settings

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
    def release_mode(self) -> ReleaseChoice:
        """Return the way in which counts are released."""
        return self.release or RELEASE_DEFAULTS[self.mechanism][1]

    @property
    def is_of_numbers(self) -> bool:
        """Return whether the items are numbers: for a histogram always, for a trie in a range."""
        is_ranged = self.low is not None or self.high is not None
        return self.mechanism in RELEASE_DEFAULTS and (is_ranged or self.mechanism != "triehh")

    def source(self) -> dict[str, Any]:
        """Return the fields that every JSON document of a simulation has under `parameters`."""
        return {"data": str(self.data), "column": self.column, "seed": self.seed}


def accepted_options(
    request: SimulationRequest, all_options: set[str]
) -> tuple[set[str], str, dict[str, str]]:
    """Return the options that the simulation takes, its name, and reasons against other options."""
    from protocol.mechanisms.number_sums import NumberSums
    from protocol.mechanisms.registry import REPORT_MECHANISMS

    name = request.mechanism
    simulation = f"a simulation of {name}"
    if name in REPORT_MECHANISMS:
        if name == "prefix-extension":
            simulation += ", of strings of any characters,"
        return _COMMON_REPORT_OPTIONS | _report_options_of(name), simulation, {}
    if name == NumberSums.name:
        return _NUMBER_SUMS_OPTIONS, simulation, {}
    if name not in RELEASE_DEFAULTS:
        accepted = all_options - _REPORT_ONLY_OPTIONS - _RELEASE_ONLY_OPTIONS
        if request.devices_by_round is None:
            return accepted, simulation, {}
        return accepted - {"devices"}, f"{simulation} with --devices-by-round", {}
    accepted = all_options - _REPORT_ONLY_OPTIONS - _WORKER_OPTIONS - _TABLE_ONLY_OPTIONS
    reason = _WHY_TRIE_IS_NOT_SHARED
    if request.is_of_numbers:
        reason = _WHY_NUMBERS_ARE_NOT_SHARED
        accepted -= {"invited", "confidence"}
        simulation += " over numbers"
    return accepted, simulation, dict.fromkeys(_WORKER_OPTIONS, reason)


def _report_options_of(mechanism: str) -> set[str]:
    from protocol.oracles.registry import ORACLES, depends_on_goal, uses_frequency_bound

    if mechanism == "prefix-extension":
        return {"length"}
    options = {"length", "alphabet"}
    if mechanism not in ORACLES:
        return options | {"delta"}
    options |= {"most"} if uses_frequency_bound(mechanism) else set()
    return options | ({"goal"} if depends_on_goal(mechanism) else set())
