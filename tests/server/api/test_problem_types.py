"""The list of problem types in the documentation is the list in the code."""

import re
from pathlib import Path

from client.errors import ERROR_CLASSES
from protocol.api.messages import ProblemType
from server.http.problem_details import STATUS_AND_TITLE

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


def test_the_documentation_lists_each_type_with_its_statuses_and_what_to_do() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([0-9, ]+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    listed = {kind: [int(status) for status in statuses.split(",")] for kind, statuses, _ in rows}
    assert len(rows) == len(listed)
    assert listed.keys() == set(ProblemType)
    for kind, statuses in listed.items():
        assert STATUS_AND_TITLE[ProblemType(kind)][0] in statuses, kind


def test_each_type_has_a_status_and_an_exception() -> None:
    assert STATUS_AND_TITLE.keys() == ERROR_CLASSES.keys() == set(ProblemType)
