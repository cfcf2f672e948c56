"""`blindtally watch`: a study's rounds as they finish, until the study ends."""

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from blindtally.console.options import DEFAULT_URL, ApiKeyOption, UrlOption
from blindtally.console.terminal import print_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.api.messages import RoundView


def watch(
    study: Annotated[str, Argument(help="Name or id of the study.")],
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    as_json: Annotated[
        bool, Option("--json", help="Print each event as a line of JSON, and nothing else.")
    ] = False,
) -> None:
    """Follow a study until it ends, with a line for each round that begins or finishes.

    Ctrl-C ends the command and not the study.

    Example:
      blindtally watch words
      blindtally watch 3f2a0c55d1e9b7a4 --json
    """
    from blindtally.console.service_connection import open_analyst

    elsewhere = "" if url == DEFAULT_URL else f" --url {url}"
    with open_analyst(url, key) as analyst:
        target = analyst.study(study)
        try:
            if as_json:
                for event in target.events():
                    print_line(event.model_dump_json())
                return
            if target.state == "created":
                print_line(f"not started yet: `blindtally studies start {target.id}{elsewhere}`")
            view = target.wait(round_printer())
        except KeyboardInterrupt:
            again = f"`blindtally watch {target.id}{elsewhere}` follows it again"
            print_line(f"stopped; the study goes on: {again}", err=True)
            raise Exit(130) from None
    print_line(f"{view.outcome}. {view.end_reason or ''}")
    print_line(f"its answer: blindtally query {target.id}{elsewhere}", err=True)


def round_printer() -> "Callable[[RoundView], None]":
    """Return a function that prints a line for a round, unless it is that of the last call."""
    last = ""

    def print_round(view: "RoundView") -> None:
        nonlocal last
        devices = "" if view.participants is None else f", {view.participants:,} devices"
        if view.state == "running":
            devices = f", for {view.plan.terms.minimum:,} devices or more"
        reasons = dict.fromkeys(cohort.failure for cohort in view.cohorts if cohort.failure)
        line = f"round {view.number}: {'; '.join([f'{view.state}{devices}', *reasons])}"
        if line != last:
            print_line(line)
        last = line

    return print_round
