"""`blindtally fleet`: simulated devices that take part in a study of a running service."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from typer import Option

from blindtally.console.errors import exit_with_error
from blindtally.console.field_options import FieldOptions
from blindtally.console.options import (
    DEFAULT_ROUNDS,
    DEFAULT_URL,
    ApiKeyOption,
    ColumnOption,
    FleetDataOption,
    SeedOption,
    UrlOption,
)
from blindtally.console.output_files import JsonOption

DEFAULT_KEY_FILE = Path("registrar.key")


class FleetOptions(FieldOptions):
    """The command, with the fields of its scenario and of the devices' policy as options."""

    def field_types(self) -> Mapping[str, object]:
        from blindtally.fleet_run.scenario import FIELDS

        return FIELDS


COMMAND_CLASS: Final = FleetOptions


def fleet(
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    token: Annotated[
        str | None,
        Option(
            envvar="BLINDTALLY_ENROLMENT_TOKEN",
            show_envvar=False,  # too long for a narrow terminal
            help="Enrolment token of the devices.",
        ),
    ] = None,
    study: Annotated[str | None, Option(help="Name or id of the study to join.")] = None,
    new: Annotated[bool, Option("--create", help="Create a study first.")] = False,
    data: FleetDataOption = None,
    column: ColumnOption = None,
    devices: Annotated[
        int | None,
        Option(
            min=3,
            help="Number of devices selected for a round.",
            show_default="100 in a new study, else all that fit in the cohorts",
        ),
    ] = None,
    rounds: Annotated[int, Option(min=1, help="Number of rounds of a new study.")] = DEFAULT_ROUNDS,
    registrar: Annotated[
        Path,
        Option(
            help="Key file of the registrar that enrols the devices (with --no-registrar, none); a "
            "new study makes it if it is missing."
        ),
    ] = DEFAULT_KEY_FILE,
    sets: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="Behaviour of the devices, such as dropout=0.1, a limit of theirs, such as "
            "min_cohort=5, or a term of a new study, such as sum=one-shot (docs/cli.md); "
            "repeatable. Each is an option, too: --dropout 0.1.",
        ),
    ] = None,
    seed: SeedOption = 1,
    workers: Annotated[
        int | None,
        Option(
            min=1,
            max=1024,
            help="Processes of this machine that share the devices.",
            show_default="pairwise sums: one for 50 devices, at most one per processor; else 1",
        ),
    ] = None,
    json_path: JsonOption = None,
) -> None:
    """Let simulated devices take part in a study, round after round, until it is over.

    Every sum is compared with the vectors in it, so no other devices may take part. If a process
    dies, its devices drop out and the fleet ends, with the rounds so far in the JSON file.

    Example:
      blindtally fleet --create --devices 60 --rounds 3
      blindtally fleet --study 3f2a0c55d1e9b7a4 --min-cohort 5
    """
    from blindtally.console.presets import preset_fields
    from blindtally.console.service_connection import open_analyst
    from blindtally.fleet_run.fleet_setup import (
        DataFile,
        joined_study_setup,
        new_study_setup,
        useful_processes,
    )
    from blindtally.fleet_run.registrar_key_files import load_registrar_of
    from blindtally.fleet_run.run_on_terminal import (
        exit_on_errors,
        open_shard_pool,
        run_on_terminal,
    )
    from blindtally.fleet_run.scenario import parse_scenario
    from blindtally.fleet_run.study_run import create_study
    from protocol.mechanisms.quality_goal import parse_goal

    if (study is None) is not new:
        raise exit_with_error("--study names a study, and --create makes one: pass one of them")
    with exit_on_errors():
        scenario, config = parse_scenario(sets or [], devices, seed, is_new=new)
        if scenario.stop_at is not None and not new:
            raise exit_with_error("--stop-at needs --create: the goal of a study does not change")
        goal = parse_goal(scenario.stop_at)
        config = replace(config, token=token, api_key=key)
        file, key_file = DataFile(data, column), None if scenario.no_registrar else registrar
        with open_analyst(url, key, waits_for_start=True) as analyst:
            joined = analyst.study(study) if study else None
            view = joined.view if joined else None
            processes = workers or useful_processes(view or scenario.kind, devices)
            with open_shard_pool(processes, scenario.dask) as shards:
                if key_file and (identity := load_registrar_of(view, key_file)):
                    policy = replace(config.policy, registrar=identity.public)
                    config = replace(config, registrar=identity, policy=policy)
                if joined is None:
                    asked = (scenario.numbers, scenario.strings, scenario.options)
                    setup = new_study_setup(
                        file,
                        config,
                        rounds,
                        scenario.idle,
                        goal,
                        scenario.member,
                        preset_fields(*asked, scenario.private),
                    )
                    joined = create_study(analyst, setup)
                else:
                    setup = joined_study_setup(file, config, joined.view, devices)
                run_on_terminal(url, key, joined, setup, shards, json_path)
