"""`blindtally privacy`: what a study, or all studies of a population, tell of any one device."""

from typing import Annotated, Literal

import httpx
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from blindtally.output import ApiKey, failed, write_json
from client.analyst import Analyst
from client.problems import ServiceError
from protocol.privacy.entries import Party
from protocol.privacy.ledger import Budget, Statement
from protocol.privacy.loss import Relation

_PATIENCE = 30.0
_WIDTH = 80


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
        float | None, typer.Option(help="To tell epsilons at; of a new budget: its delta [1e-6].")
    ] = None,
    party: Annotated[
        Literal["devices", "server", "analyst", "public"],
        typer.Option(help="Whose view a new budget bounds."),
    ] = "public",
    relation: Annotated[
        Literal["add-remove", "replace-one"],
        typer.Option(help="Of neighbouring populations, for a new budget."),
    ] = "add-remove",
    url: Annotated[str, typer.Option(help="Where the service answers.")] = "http://127.0.0.1:8000",
    key: ApiKey = None,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="PATH", help="Write JSON; - is stdout.")
    ] = None,
) -> None:
    """Tell what was released about devices, what each party learned of it, and what is left.

    Examples:
    blindtally privacy 3f2a0c55d1e9b7a4
    blindtally privacy --population phones
    blindtally privacy --population phones --create --epsilon 4 --delta 1e-6 --party server
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
        raise failed(error, code=1) from None
    if json_path != "-":
        _show(statement)
    if json_path is not None:
        write_json(json_path, statement.model_dump(mode="json"))


def _budget(epsilon: float, delta: float | None, party: Party, relation: Relation) -> Budget:
    return Budget(
        epsilon=epsilon, delta=1e-6 if delta is None else delta, party=party, relation=relation
    )


def _show(statement: Statement) -> None:
    screen = Console(width=None if Console().is_terminal else _WIDTH)
    screen.print(f"At most, by all releases together, at delta {statement.delta:g}:")
    sights = Table("who", "epsilon", "replace-one")
    for sight in statement.sights:
        sights.add_row(sight.party, _cell(sight.epsilon), _cell(sight.epsilon_replace_one))
    screen.print(sights)
    if statement.budget is not None:
        budget, left = statement.budget, statement.left
        rest = "nothing is left" if left is None else f"about {left:.4g} is left"
        screen.print(
            f"budget: epsilon {budget.epsilon:g} of the {budget.party}'s view at delta "
            f"{budget.delta:g} ({budget.relation}); {rest}"
        )
    for line in statement.lines:
        screen.print()
        mechanism = line.entry.mechanism.model_dump()
        kind = mechanism.pop("kind")
        of = ", ".join(f"{name} {_number(value)}" for name, value in mechanism.items())
        screen.print(Text(f"{line.entry.name}: {kind}, {of}", style="bold"))
        views = Table("who", "sees", "epsilon", "if", box=None, pad_edge=False)
        for who, view in line.views.items():
            views.add_row(who, view.sees, _cell(line.epsilon[who]), view.assumption)
        screen.print(views)
    if not statement.lines:
        screen.print("nothing was released")


def _cell(value: float | None) -> str:
    return "no bound" if value is None else f"{value:.4g}"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
