"""Numbers as people read them in tables."""


def seconds(value: float) -> str:
    """Return a duration with two digits, in seconds or milliseconds."""
    unit, scale = ("s", 1.0) if value >= 0.995 else ("ms", 1000.0)
    return f"{float(f'{value * scale:.2g}'):,.10g} {unit}"


def epsilon(value: float | None, none: str = "no bound") -> str:
    """Return an epsilon with four digits."""
    return none if value is None else f"{value:.4g}"
