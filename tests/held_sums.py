"""`blindtally` with sums that wait, so that a test can kill it at that moment.

    python -m tests.held_sums FOLDER serve ...

A cohort's sum waits while the folder has a file `COHORT before`, before its messages are read, or
`COHORT after`, when it is computed and not yet published. While it waits, the file `held` exists.
"""

import asyncio
import sys
from pathlib import Path
from unittest.mock import patch

from blindtally.cli import app
from server.rounds.cohort_sums import CohortSums, SummedCohort

_LOOK = 0.01  # seconds


def main(folder: Path) -> None:
    """Run `blindtally` with the remaining arguments."""

    async def wait(cohort: int, moment: str) -> None:
        hold = folder / f"{cohort} {moment}"
        while hold.exists():
            (folder / "held").touch()
            await asyncio.sleep(_LOOK)

    original = CohortSums.unmask

    async def unmask(sums: CohortSums, cohort: int) -> SummedCohort:
        await wait(cohort, "before")
        unmasked = await original(sums, cohort)
        await wait(cohort, "after")
        return unmasked

    with patch.object(CohortSums, "unmask", unmask):
        app(prog_name="blindtally")


if __name__ == "__main__":
    main(Path(sys.argv.pop(1)))
