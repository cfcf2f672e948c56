"""Where the commands of figures meet the pictures: what cannot be drawn is told in a line."""

from collections.abc import Callable
from pathlib import Path

from blindtally.figures.drawing import KINDS
from blindtally.output import failed


def check(out: Path | None) -> None:
    """Fail if `out` names no picture that can be drawn: before the work, not after it."""
    if out is not None and out.suffix not in KINDS:
        raise failed(f"cannot draw {out}: its name ends in {' or '.join(KINDS)}")


def draw(out: Path | None, picture: Callable[[Path], None]) -> None:
    """Draw `picture` into `out`, if it is asked for; fail if matplotlib or the place is missing."""
    if out is None:
        return
    try:
        picture(out)
    except ImportError:
        raise failed("pictures need matplotlib: pip install 'blindtally[demo]'") from None
    except OSError as error:
        raise failed(f"cannot write {out}: {error.strerror}") from None
