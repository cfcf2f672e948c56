"""Notice that kernels are compiled: the first use after an installation takes seconds longer."""

import sys

import typer


def announce_compilation() -> None:
    """Print a line on the terminal when a kernel is first compiled; nothing if it is in a cache."""
    if not sys.stderr.isatty():
        return
    # Of the extras, and slow to import.
    from numba.core.event import Event, Listener, register, unregister  # noqa: PLC0415

    class Announcer(Listener):
        """Listener that prints once."""

        def on_start(self, event: Event) -> None:
            unregister(event.kind, self)
            typer.echo("compiling the decoder, once after an installation: seconds ...", err=True)

        def on_end(self, event: Event) -> None:
            """Ignore the end."""

    register("numba:compile", Announcer())
