"""Filter of the list of studies: by texts, by a tag, by the owner, and by the state.

Each study has its searchable texts in one column, in lower case, a line each:

    new words
    tracked
    hashed
    #phones

The first line is the name, then come the texts of the question, and then the tags. A search is for
a part of this column, and a tag for a whole line. No index helps to find a part of a text.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field
from sqlalchemy import ColumnElement, and_, func, literal, or_

from protocol.api.events import EndCause
from server.db.schema import StudyRow

StudyOutcome: TypeAlias = Literal["", "created", "running", "finished", "stopped", "failed"]
_Text: TypeAlias = Annotated[str, Field(max_length=1_000)]
_MAX_SEARCH_CHARS: Final = 2_000  # a question may list thousands of options


@dataclass(frozen=True, slots=True)
class StudyFilter:
    """Conditions that a listed study meets; an empty one is met by all.

    `search` is found in its name, in a text of its question or in a tag, in any case. `name`, `tag`
    and `owner` are whole ones. A study has `failed` if it ended without an answer.
    """

    search: _Text = ""
    tag: _Text = ""
    owner: _Text = ""
    state: StudyOutcome = ""
    name: _Text = ""

    def conditions(self, *, is_sqlite: bool) -> Iterator[ColumnElement[bool]]:
        """Yield the conditions of the rows."""
        if self.name:
            yield StudyRow.name == self.name
        if self.owner:
            yield StudyRow.owner == self.owner
        if self.state:
            yield _has_outcome(self.state)
        for text in (self.search.casefold(), self.tag and f"\n#{self.tag}\n"):
            if text:
                part = literal(text, StudyRow.search.type)
                find = func.instr(StudyRow.search, part)
                yield (find if is_sqlite else func.position(part.op("IN")(StudyRow.search))) > 0


NO_FILTER: Final = StudyFilter()


def search_text(name: str, question: Mapping[str, Any], tags: Iterable[str]) -> str:
    """Return the searchable texts of a study."""
    texts = "\n".join([name, *_texts(question)])[:_MAX_SEARCH_CHARS]
    return "\n".join([texts.casefold(), *(f"#{tag}" for tag in tags), ""])


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value.replace("\n", " ")
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _has_outcome(outcome: str) -> ColumnElement[bool]:
    """Return the condition of the studies with this `StudyView.outcome`."""
    has_failed = StudyRow.end_cause == EndCause.NO_ANSWER.value
    if outcome == "failed":
        return and_(StudyRow.state == "finished", has_failed)
    return and_(StudyRow.state == outcome, or_(StudyRow.end_cause.is_(None), ~has_failed))
