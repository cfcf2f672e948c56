"""The command `blindtally`, also as `python -m blindtally`."""

import sys


def main() -> None:
    """Run the command line; without the extra `cli`, end with a line that names it."""
    try:
        from blindtally.cli import app  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as error:
        from client.extras_installation import describe_missing  # noqa: PLC0415

        if error.name not in {"rich", "typer"}:
            raise
        sys.exit(f"error: the command blindtally needs {describe_missing(error, 'cli')}")
    app(prog_name="blindtally")


if __name__ == "__main__":
    main()
