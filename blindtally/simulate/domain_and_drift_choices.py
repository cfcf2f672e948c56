"""Choices of a simulation that the command line shows."""

from typing import Literal

DomainChoice = Literal["auto", "alphabet", "utf8", "hashed"]
DriftKind = Literal["none", "gradual", "sudden", "late", "crowds", "weekly", "bursts"]
