"""`python -m paper` runs the commands of `paper/commands.py`."""

from paper.commands import app

app(prog_name="python -m paper")
