"""`blindtally registrar`: the key with which a registrar enrols the devices of a study.

A third party must confirm which devices are real, or a server could invent devices. The public key
of this *registrar* is part of the study's terms. Its secret key is a file that only its owner may
read, and that is never overwritten.
"""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import JsonOption, write_json


def registrar(
    path: Annotated[Path, Argument(help="Key file, which only its owner may read.")],
    show: Annotated[
        bool, Option("--show", help="Show the public key of an existing file.")
    ] = False,
    json_path: JsonOption = None,
) -> None:
    """Make the key of a registrar, and print its public half for a study's terms.

    Example:
      blindtally registrar registrar.key
    """
    from blindtally.fleet_run.registrar_key_files import (
        KeyFileError,
        create_key_file,
        load_key_file,
    )

    try:
        identity = load_key_file(path) if show else create_key_file(path)
    except KeyFileError as error:
        raise exit_with_error(error) from None
    if json_path != "-":
        typer.echo(identity.public.hex())
    write_json(json_path, {"public": identity.public.hex(), "file": str(path)})
    if not show:
        typer.echo(f"the secret half is in {path}: keep it, and keep it from the server", err=True)
