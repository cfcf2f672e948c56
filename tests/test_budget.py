"""Figures of the code stay within `budget.toml`, and the check notices when one does not."""

import tomllib

from tools import budget


def test_no_figure_is_above_its_limit() -> None:
    limits = tomllib.loads(budget.LIMITS.read_text())
    assert budget.excesses(budget.figures(), limits) == []


def test_a_figure_above_its_limit_is_named() -> None:
    limits = {name: {"limit": 40} for name in ("settings", "options")}
    (line,) = budget.excesses({"settings": 41, "options": 9}, limits)
    assert line.startswith("settings: 41 is above the limit of 40")
