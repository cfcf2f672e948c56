"""`blindtally privacy`: privacy loss of a device in a study, or in all studies of a population."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.options import DEFAULT_URL, ApiKeyOption, UrlOption
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.tables import (
    bold_lines,
    fact_table,
    format_epsilon,
    print_parts,
    result_table,
)

if TYPE_CHECKING:
    from protocol.privacy.ledger import Statement


def privacy(
    study: Annotated[str | None, Argument(help="Name or id of the study.")] = None,
    population: Annotated[
        str | None, Option(help="Population whose studies to add up, instead of one study.")
    ] = None,
    new: Annotated[
        bool, Option("--create", help="Create the population, with a budget if --epsilon is given.")
    ] = False,
    epsilon: Annotated[
        float | None, Option(help="Epsilon of the new budget, which cannot change later.")
    ] = None,
    delta: Annotated[
        float | None,
        Option(help="Delta of all epsilons, and of a new budget.", show_default="1e-6"),
    ] = None,
    party: Annotated[
        Literal["devices", "server", "analyst", "public"],
        Option(help="Party whose view a new budget bounds."),
    ] = "public",
    relation: Annotated[
        Literal["add-remove", "replace-one"], Option(help="Neighbouring relation of a new budget.")
    ] = "add-remove",
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Show released counts, the privacy loss to each party, and the remaining budget.

    Example:
      blindtally privacy 3f2a0c55d1e9b7a4
      blindtally privacy --population phones
      blindtally privacy --population phones --create --epsilon 4 --party server
    """
    from blindtally.console.service_connection import open_analyst
    from protocol.privacy.ledger import Budget

    if (study is None) is (population is None):
        raise exit_with_error("name a study, or a population with --population")
    if new and population is None:
        raise exit_with_error("--create takes --population")
    with open_analyst(url, key) as analyst:
        if new and population is not None:
            budget = None
            if epsilon is not None:
                at_delta = 1e-6 if delta is None else delta
                budget = Budget(epsilon=epsilon, delta=at_delta, party=party, relation=relation)
            analyst.create_population(population, budget)
        if population is not None:
            statement = analyst.population_privacy(population, delta)
        else:
            statement = analyst.study(str(study)).privacy(delta)
    if json_path != "-":
        _show(statement)
    write_json(json_path, statement.model_dump(mode="json"))


def _show(statement: "Statement") -> None:
    bounds: dict[str, tuple[str, ...]] = {
        sight.party: (format_epsilon(sight.epsilon), format_epsilon(sight.epsilon_replace_one))
        for sight in statement.parties
    }
    sights = [(names, *both) for names, both in _equal_views(bounds).items()]
    title = f"Bounds for all releases together, at delta {statement.delta:g}"
    print_parts(result_table(["party"], ["epsilon", "replace-one"], sights, title))
    if statement.budget is not None:
        budget, left = statement.budget, statement.remaining_epsilon
        rest = "nothing remains" if left is None else f"about {left:.4g} remains"
        print_parts(
            "",
            f"budget: epsilon {budget.epsilon:g} of the {budget.party}'s view at delta "
            f"{budget.delta:g} ({budget.relation}); {rest}",
        )
    for line in statement.lines:
        mechanism = line.entry.event.model_dump()
        kind = mechanism.pop("kind")
        of = ", ".join(f"{name} {_format_number(value)}" for name, value in mechanism.items())
        views: dict[str, tuple[str, ...]] = {
            who: (
                f"epsilon {format_epsilon(line.epsilon[who])}",
                f"sees {view.sees}",
                f"assumption: {view.assumption}",
            )
            for who, view in line.views.items()
        }
        facts = fact_table(_equal_views(views))
        print_parts("", bold_lines(f"{line.entry.name}: {kind}, {of}"), facts)
    if not statement.lines:
        print_parts("", "no release yet")


def _equal_views(views: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return each view once, by the names of all parties that have it."""
    parties: dict[tuple[str, ...], list[str]] = {}
    for name, view in views.items():
        parties.setdefault(view, []).append(name)
    return {", ".join(names): view for view, names in parties.items()}


def _format_number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
