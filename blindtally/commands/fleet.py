"""`blindtally fleet`: simulated devices that take part in a study of a running service."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from blindtally.console.errors import exit_with_error, parse_public_keys
from blindtally.console.options import (
    DEFAULT_DEVICES,
    DEFAULT_IDLE_SECONDS,
    DEFAULT_ROUNDS,
    DEFAULT_URL,
    ApiKeyOption,
    ColumnOption,
    DaskOption,
    DropoutOption,
    FleetDataOption,
    FleetRoundsOption,
    SeedOption,
    StopAtOption,
    SumOption,
    UrlOption,
)
from blindtally.console.output_files import JsonOption

DEFAULT_KEY_FILE = Path("registrar.key")
_TokenOption = Annotated[
    str | None,
    Option(
        envvar="BLINDTALLY_ENROLMENT_TOKEN",
        show_envvar=False,  # too long for a narrow terminal
        help="Enrolment token of the devices.",
    ),
]
_StudyOption = Annotated[str | None, Option(help="Id of the study to join.")]
_CreateOption = Annotated[bool, Option("--create", help="Create a study first, as the demo does.")]
_DevicesOption = Annotated[
    int | None,
    Option(
        min=3,
        help="Number of devices selected for a round.",
        show_default="160 with --create, otherwise all that fit in the cohorts",
    ),
]
_IdleOption = Annotated[
    float,
    Option(
        min=0,
        help="Seconds without a message after which a phase with a quorum ends, for --create. "
        "Use more than 3 if a replica may die, so that its devices can try again.",
    ),
]
_DropoutInOption = Annotated[
    list[str] | None,
    Option(
        metavar="PHASE=SHARE",
        help="Fraction that drops out in one phase, such as sharing=0.1, instead of --dropout; "
        "repeatable.",
    ),
]
_ArrivalsOption = Annotated[
    Literal["at-once", "poisson", "diurnal", "bursts"],
    Option(help="Arrival pattern of the devices, see --over."),
]
_OverOption = Annotated[
    float,
    Option(
        min=0, help="Seconds over which devices arrive; with diurnal arrivals, length of a day."
    ),
]
_SlowOption = Annotated[float, Option(min=0, max=0.9, help="Fraction of slow devices.")]
_PauseOption = Annotated[
    float, Option(min=0, help="Mean seconds of a slow device for each answer.")
]
_MaxContributionOption = Annotated[
    int, Option(min=1, help="Largest number of items that devices agree to add.")
]
_MinCohortOption = Annotated[
    int | None,
    Option(
        min=2,
        help="Smallest cohort that devices agree to join.",
        show_default="20; with --create at most a quarter of the devices",
    ),
]
_MinThresholdOption = Annotated[
    float, Option(min=1, help="Smallest threshold of exact sums that devices accept.")
]
_MembersOption = Annotated[
    list[str] | None,
    Option(
        metavar="KEY",
        help="Public key of a committee's member that devices accept; repeatable. With "
        "--create the study has one-shot sums, which these members open.",
    ),
]
_MaxEpsilonOption = Annotated[
    float, Option(min=0, help="Largest total epsilon of all reports that a device accepts.")
]
_RepeatExactOption = Annotated[
    bool,
    Option("--repeat-exact", help="Take part in all rounds, even if exact sums have no noise."),
]
_RegistrarOption = Annotated[
    Path,
    Option(help="Key file of the registrar that enrols the devices. --create makes it if missing."),
]
_NoRegistrarOption = Annotated[
    bool,
    Option(
        "--no-registrar",
        help="Use no registrar: trust the server not to invent devices.",
    ),
]
_WorkersOption = Annotated[
    int | None,
    Option(
        min=1,
        max=1024,
        help="Processes of this machine that share the devices.",
        show_default="pairwise sums: one for 50 devices, at most one per processor; else 1",
    ),
]


def fleet(
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    token: _TokenOption = None,
    study: _StudyOption = None,
    new: _CreateOption = False,
    data: FleetDataOption = None,
    column: ColumnOption = None,
    devices: _DevicesOption = None,
    rounds: FleetRoundsOption = DEFAULT_ROUNDS,
    stop_at: StopAtOption = None,
    idle: _IdleOption = DEFAULT_IDLE_SECONDS,
    dropout: DropoutOption = 0.0,  # a phase without those who left ends seconds later
    dropout_in: _DropoutInOption = None,
    arrivals: _ArrivalsOption = "at-once",
    over: _OverOption = 0.0,
    slow: _SlowOption = 0.0,
    pause: _PauseOption = 2.0,
    seed: SeedOption = 1,
    max_contribution: _MaxContributionOption = 100,
    min_cohort: _MinCohortOption = None,
    min_threshold: _MinThresholdOption = 5.0,
    kind: SumOption = "pairwise",
    member: _MembersOption = None,
    max_epsilon: _MaxEpsilonOption = 4.0,
    repeat_exact: _RepeatExactOption = False,
    registrar: _RegistrarOption = DEFAULT_KEY_FILE,
    trust_server_identities: _NoRegistrarOption = False,
    workers: _WorkersOption = None,
    dask: DaskOption = None,
    json_path: JsonOption = None,
) -> None:
    """Let simulated devices take part in a study, round after round, until it is over.

    Every sum is compared with the vectors in it, so no other devices may take part. If one
    of its processes dies, its devices drop out and the fleet ends; --json has the rounds so far.

    Example:
      blindtally fleet --create --devices 60 --rounds 3
      blindtally fleet --study 3f2a0c55d1e9b7a4
    """
    from blindtally.console.service_connection import open_analyst
    from blindtally.fleet_run.fleet_setup import (
        DEFAULT_MIN_COHORT,
        DataFile,
        joined_study_setup,
        min_cohort_for,
        new_operators,
        new_study_setup,
        parse_dropout,
        useful_processes,
    )
    from blindtally.fleet_run.registrar_key_files import load_or_create_key_file, load_registrar_of
    from blindtally.fleet_run.run_on_terminal import (
        exit_on_errors,
        open_shard_pool,
        pin_registrar,
        run_on_terminal,
    )
    from blindtally.fleet_run.study_run import create_study
    from client.fleet.behaviour import Arrivals, FleetBehaviour
    from client.fleet.config_and_results import FleetConfig
    from protocol.api.device_policy import Policy
    from protocol.mechanisms.quality_goal import parse_goal

    _check_options(study, new, stop_at)
    members = member or []
    with exit_on_errors():
        goal = parse_goal(stop_at)
        dropouts = parse_dropout(dropout_in or [], "one-shot" if members else kind)
        operators = new_operators(kind) if new and not members else ()
        pinned = [operator.public for operator in operators]
        default_cohort = min_cohort_for(devices or DEFAULT_DEVICES) if new else DEFAULT_MIN_COHORT
        policy = Policy(
            max_contribution=max_contribution,
            min_cohort=min_cohort or default_cohort,
            min_threshold=min_threshold,
            max_epsilon=max_epsilon,
            repeat_exact=repeat_exact,
            committee=frozenset([*pinned, *parse_public_keys(members, "--member")]),
            trust_server_identities=trust_server_identities,
            accept_exact_estimates=True,  # simulated devices have no secrets
        )
        config = FleetConfig(
            devices or DEFAULT_DEVICES,
            dropout,
            seed,
            policy,
            token=token,
            api_key=key,
            behaviour=FleetBehaviour(Arrivals(arrivals), over, slow, pause, dropouts),
            operators=operators,
        )
        file, key_file = DataFile(data, column), None if trust_server_identities else registrar
        with open_analyst(url, key) as analyst:
            joined = analyst.study(study) if study else None
            of_study = joined.view if joined else "one-shot" if members else kind
            with open_shard_pool(workers or useful_processes(of_study, devices), dask) as shards:
                if joined is None:
                    identity = load_or_create_key_file(key_file) if key_file else None
                    config = pin_registrar(config, identity)
                    setup = new_study_setup(file, config, rounds, idle, goal, members)
                    joined = create_study(analyst, setup)
                else:
                    identity = load_registrar_of(joined.view, key_file) if key_file else None
                    config = pin_registrar(config, identity)
                    setup = joined_study_setup(file, config, joined.view, devices)
                run_on_terminal(url, key, joined, setup, shards, json_path)


def _check_options(study: str | None, new: bool, stop_at: object) -> None:
    """Check that options which exclude each other are not combined."""
    if (study is None) is not new:
        raise exit_with_error("--study names a study, and --create makes one: pass one of them")
    if stop_at is not None and not new:
        raise exit_with_error("--stop-at needs --create: the goal of a study does not change")
