"""All routes of pages, in the order in which they are tried."""

from typing import Final

from server.pages import advising, assets, creating, login, operations, rounds, studies

ROUTERS: Final = tuple(
    part.router for part in (assets, login, creating, advising, studies, rounds, operations)
)
