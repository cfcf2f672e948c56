"""Defaults of simulated fleets and of the demo."""

from typing import Final

DEFAULT_DEVICES: Final = 160
DEFAULT_ROUNDS: Final = 7
DEFAULT_DROPOUT: Final = 0.1
DEFAULT_CONTRIBUTION: Final = 2
DEFAULT_IDLE_SECONDS: Final = 0.5  # without a message; then a phase with a quorum ends
