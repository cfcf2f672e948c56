"""`blindtally privacy`: what a study, or all studies of a population, tell of any one device."""

from typing import Annotated, Literal

import httpx
import typer
from rich.text import Text

from blindtally.output import HERE, ApiKey, Json, Url, failed, write_json
from blindtally.refused import refused
from blindtally.tables import facts, show, table
from client.analyst import Analyst
from client.problems import ServiceError
from protocol.privacy.entries import Party
from protocol.privacy.ledger import Budget, Statement
from protocol.privacy.loss import Relation

_PATIENCE = 30.0


def privacy(
    study: Annotated[str | None, typer.Argument(help="The study to tell of.")] = None,
    population: Annotated[
        str | None, typer.Option(help="Tell of all studies of this population instead.")
    ] = None,
    new: Annotated[
        bool, typer.Option("--create", help="Create the population, with the budget named here.")
    ] = False,
    epsilon: Annotated[
        float | None, typer.Option(help="Of a new population's budget, which never changes.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="To tell epsilons at; of a new budget: its delta.", show_default="1e-6"),
    ] = None,
    party: Annotated[
        Literal["devices", "server", "analyst", "public"],
        typer.Option(help="Whose view a new budget bounds."),
    ] = "public",
    relation: Annotated[
        Literal["add-remove", "replace-one"],
        typer.Option(help="Of neighbouring populations, for a new budget."),
    ] = "add-remove",
    url: Url = HERE,
    key: ApiKey = None,
    json_path: Json = None,
) -> None:
    """Tell what was released about devices, what each party learned of it, and what is left.

    Example:
      blindtally privacy 3f2a0c55d1e9b7a4
      blindtally privacy --population phones
      blindtally privacy --population phones --create --epsilon 4 --party server
    """
    if (study is None) is (population is None):
        raise failed("name a study, or a population with --population")
    if new and (population is None or epsilon is None):
        raise failed("--create takes --population and --epsilon")
    try:
        with Analyst(url, key, patience=_PATIENCE) as analyst:
            if new and population is not None and epsilon is not None:
                budget = _budget(epsilon, delta, party, relation)
                analyst.create_population(population, budget)
            if population is not None:
                statement = analyst.population_privacy(population, delta)
            else:
                statement = analyst.study(str(study)).privacy(delta)
    except httpx.TransportError as error:
        raise failed(f"{url} is out of reach: {error}", code=1) from None
    except (ServiceError, ValueError) as error:
        raise refused(error) from None
    if json_path != "-":
        _show(statement)
    write_json(json_path, statement.model_dump(mode="json"))


def _budget(epsilon: float, delta: float | None, party: Party, relation: Relation) -> Budget:
    return Budget(
        epsilon=epsilon, delta=1e-6 if delta is None else delta, party=party, relation=relation
    )


def _show(statement: Statement) -> None:
    sights = [
        (sight.party, _cell(sight.epsilon), _cell(sight.epsilon_replace_one))
        for sight in statement.sights
    ]
    title = f"At most, by all releases together, at delta {statement.delta:g}"
    show(table(["who"], ["epsilon", "replace-one"], sights, title))
    if statement.budget is not None:
        budget, left = statement.budget, statement.left
        rest = "nothing is left" if left is None else f"about {left:.4g} is left"
        show(
            f"\nbudget: epsilon {budget.epsilon:g} of the {budget.party}'s view at delta "
            f"{budget.delta:g} ({budget.relation}); {rest}"
        )
    for line in statement.lines:
        mechanism = line.entry.mechanism.model_dump()
        kind = mechanism.pop("kind")
        of = ", ".join(f"{name} {_number(value)}" for name, value in mechanism.items())
        views: dict[str, str] = {
            who: f"epsilon {_cell(line.epsilon[who])}; sees {view.sees}; "
            f"assumption: {view.assumption}"
            for who, view in line.views.items()
        }
        show(Text(f"\n{line.entry.name}: {kind}, {of}", "bold"), facts(views))
    if not statement.lines:
        show("\nnothing was released")


def _cell(value: float | None) -> str:
    return "no bound" if value is None else f"{value:.4g}"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
