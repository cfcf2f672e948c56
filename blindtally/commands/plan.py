"""`blindtally plan`: mechanism and parameters for a study, and a forecast of its results."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from blindtally.console.errors import exit_with_error, refuse_unused_options
from blindtally.console.options import (
    DEFAULT_ITEMS,
    DEFAULT_ZIPF,
    ColumnOption,
    MaxShareOption,
    SeedOption,
    complete_data,
)
from blindtally.console.output_files import JsonOption

_SKETCHES = ("count-sketch", "count-median")
# Options of each kind of plan.
_RELEASE_OPTIONS = {
    *("devices", "mechanism", "epsilon", "delta", "levels", "contribution", "json_path")
}
_SKETCH_OPTIONS = {
    *("devices", "mechanism", "epsilon", "delta", "rounds", "words", "items", "json_path")
}
_REPORT_OPTIONS = {"devices", "domain", "epsilon", "goal", "most", "json_path"}
_SUM_OPTIONS = {
    *("devices", "rounds", "threshold", "words", "domain", "max_bytes", "alphabet", "length"),
    *("contribution", "cohorts", "zipf", "items", "data", "column", "runs", "seed", "json_path"),
}


def plan(
    context: typer.Context,
    devices: Annotated[int, Option(min=1, help="Number of devices in a round (n).")],
    rounds: Annotated[
        int | None, Option(min=1, max=1000, help="Number of rounds (R); required for sums.")
    ] = None,
    threshold: Annotated[
        float | None,
        Option(
            min=1,
            help="Total count over all rounds from which an item is heavy; required for sums.",
        ),
    ] = None,
    words: Annotated[
        int | None,
        Option(
            min=1,
            help="Maximum number of 16-bit words that a device sends; required for sums.",
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        Option(
            help="Mechanism of central privacy: triehh compares ways to release counts, "
            "count-sketch and count-median the cost of noise by rows.",
            autocompletion=lambda: ["triehh", *_SKETCHES],
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        Option(
            help="Plan reports of this local privacy loss, or with --mechanism a release of "
            "counts; otherwise sums."
        ),
    ] = None,
    delta: Annotated[float, Option(help="Delta of a central epsilon, over all levels.")] = 1e-6,
    levels: Annotated[int, Option(help="Number of levels of triehh.")] = 10,
    goal: Annotated[
        str | None,
        Option(
            help="Goal of reports: worst-mse, l1, l2 or heavy.",
            show_default="heavy for strings, else l2",
            autocompletion=lambda: ["worst-mse", "l1", "l2", "heavy"],
        ),
    ] = None,
    most: MaxShareOption = 1.0,
    domain: Annotated[
        str,
        Option(
            help="Items: strings of any length, alphabet for short ones, or the number of values."
        ),
    ] = "strings",
    max_bytes: Annotated[int, Option(min=1, max=4096, help="Maximum bytes of a string.")] = 64,
    alphabet: Annotated[
        str, Option(help="Characters of the short strings.", show_default="a to z")
    ] = "abcdefghijklmnopqrstuvwxyz",
    length: Annotated[int, Option(min=1, max=16, help="Length of the short strings.")] = 3,
    contribution: Annotated[
        int, Option(min=1, max=1000, help="Maximum number of items that a device adds (m).")
    ] = 1,
    cohorts: Annotated[
        int | None,
        Option(
            min=1,
            max=1000,
            help="Number of cohorts of a round, which limit what lying devices can do.",
            show_default="as few as possible",
        ),
    ] = None,
    zipf: Annotated[
        float | None,
        Option(
            min=0.1,
            max=3,
            help="Exponent s of the assumed shares, rank^-s.",
            show_default=f"{DEFAULT_ZIPF:g}, and a range over flat and steep shares",
        ),
    ] = None,
    items: Annotated[
        int | None,
        Option(
            min=10,
            max=10**6,
            help="Number of assumed items, at most.",
            show_default=f"{DEFAULT_ITEMS:,}",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        Option(
            help="File of items with counts, or of users, that is simulated instead of assumed "
            "items.",
            autocompletion=complete_data,
        ),
    ] = None,
    column: ColumnOption = None,
    runs: Annotated[int, Option(min=1, max=100, help="Number of simulated studies.")] = 3,
    seed: SeedOption = 1,
    json_path: JsonOption = None,
) -> None:
    """Recommend a mechanism and its parameters, and predict the results of a study.

    Example:
      blindtally plan --devices 10000 --rounds 30 --threshold 50 --words 1000
      blindtally plan --devices 100000 --domain 100000 --epsilon 2 --goal heavy
      blindtally plan --mechanism triehh --devices 1000000 --epsilon 1 --levels 10
    """
    import scipy.special  # noqa: F401 - a missing extra is named before the simulations

    from blindtally.planning.oracle_recommendation import recommend_reports
    from blindtally.planning.release_designs import compare_releases
    from blindtally.planning.sketch_noise_report import compare_sketches
    from blindtally.planning.sum_plan import SumPlanRequest, plan_sums

    if mechanism is not None:
        if mechanism not in ("triehh", *_SKETCHES) or epsilon is None:
            known = ", ".join(("triehh", *_SKETCHES))
            raise exit_with_error(f"--mechanism is {known} or left out, and takes --epsilon")
        if mechanism in _SKETCHES:
            refuse_unused_options(context, _SKETCH_OPTIONS, f"a plan of {mechanism}")
            if rounds is None or words is None:
                raise exit_with_error(f"{mechanism} takes --rounds and --words")
            settings = devices, rounds, words, epsilon, delta, items or DEFAULT_ITEMS
            compare_sketches(mechanism, *settings, json_path)
            return
        refuse_unused_options(context, _RELEASE_OPTIONS, "a plan of triehh")
        compare_releases(devices, epsilon, delta, levels, contribution, json_path)
        return
    if epsilon is not None:
        taken = _REPORT_OPTIONS | ({"max_bytes"} if domain == "strings" else set())
        refuse_unused_options(context, taken, f"a plan of reports over {domain} with --epsilon")
        goal = goal or ("heavy" if domain == "strings" else "l2")
        recommend_reports(devices, domain, max_bytes, epsilon, goal, most, json_path)
        return
    refuse_unused_options(context, _SUM_OPTIONS, "a plan of sums")
    if rounds is None or threshold is None or words is None:
        raise exit_with_error(
            "pass --rounds, --threshold and --words for a plan of exact sums, or --epsilon for one "
            "of locally private reports; --help has an example of each"
        )
    request = SumPlanRequest(
        devices=devices,
        rounds=rounds,
        threshold=threshold,
        words=words,
        domain=domain,
        max_bytes=max_bytes,
        alphabet=alphabet,
        length=length,
        contribution=contribution,
        cohorts=cohorts,
        zipf=zipf,
        items=items,
        data=data,
        column=column,
        runs=runs,
        seed=seed,
    )
    plan_sums(request, json_path)
