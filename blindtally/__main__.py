"""`python -m blindtally` is the command `blindtally`."""

from blindtally.cli import app

app(prog_name="blindtally")
