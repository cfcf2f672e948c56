"""`blindtally clock`: the time by which a service deletes old rows, and its confirmation."""

from typing import TYPE_CHECKING, Annotated

from typer import Option

from blindtally.commands.credentials_and_audit import DEFAULT_DATABASE, DatabaseOption, with_access
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.terminal import print_line

if TYPE_CHECKING:
    from server.db.clock import ClockState
    from server.db.repositories.access.credentials_and_audit import AccessRepository


def clock(
    confirm: Annotated[
        bool, Option("--confirm", help="Confirm the present time: old rows are then deleted by it.")
    ] = False,
    database: DatabaseOption = DEFAULT_DATABASE,
    json_path: JsonOption = None,
) -> None:
    """Show the clock of a service, and the time by which it deletes old rows.

    A clock that is more than a week after its latest reading may be wrong, so all old rows are kept
    until you compare it with another clock and confirm it.

    Example:
      blindtally clock
      blindtally clock --confirm
    """

    async def read(access: "AccessRepository") -> "ClockState":
        from server.db.repositories.rounds.retention import RetentionRepository

        retention = RetentionRepository(access.database)
        return await (retention.confirm_clock() if confirm else retention.clock())

    state = with_access(database, read, must_exist=True)
    times = {"clock": state.now, "latest reading": state.latest, "confirmed": state.confirmed}
    shown = {name: at.isoformat(timespec="seconds") for name, at in times.items()}
    if not state.has_confirmed:
        shown["confirmed"] = "never"
    if json_path != "-":
        for name, text in shown.items():
            print_line(f"{name:14}  {text}")
        if not state.is_trusted:
            print_line("old rows are kept: if the clock is right, run `blindtally clock --confirm`")
    document = {name.replace(" ", "_"): text for name, text in shown.items()}
    write_json(json_path, document | {"is_trusted": state.is_trusted})
