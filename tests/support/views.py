"""Answers of a service as JSON documents, for tests without a service."""

import json
from typing import Any

import rfc8785

from protocol.mechanisms.registry import AnyQuestion
from protocol.question_and_plan import Terms

NOON = "2026-11-21T12:00:00Z"


def study_document(question: AnyQuestion, terms: Terms, **changes: Any) -> dict[str, Any]:
    """Return a running study in its first of two rounds, with `changes`."""
    document = {"id": "s1", "name": "words", "state": "running", "rounds": 2, "round": 1}
    document |= {"question": question.model_dump(), "terms": terms.model_dump()}
    return document | {"timeouts": {}, "created": NOON} | changes


def round_document(plan: Any, **changes: Any) -> dict[str, Any]:
    """Return the running first round of `plan`, a plan or a document, with `changes`."""
    text = _text(plan) if isinstance(plan, dict) else plan.canonical_text()
    document: dict[str, Any] = {
        "number": 1,
        "state": "running",
        "plan": text,
        "cohorts": [],
        "opened": NOON,
    }
    return document | {"closed": None, "participants": None, "distinct": None} | changes


def _text(plan: dict[str, Any]) -> str:
    try:
        return rfc8785.dumps(plan).decode()
    except rfc8785.CanonicalizationError:  # a number that only a hostile server sends
        return json.dumps(plan)


def cohort_document(phase: str, **changes: Any) -> dict[str, Any]:
    """Return the first cohort in `phase`, with `changes`."""
    document = {"number": 0, "phase": phase, "deadline": NOON, "enrolled": 0, "holders": 0}
    return document | {"threshold": 0, "history": [], "survivors": [], "failure": None} | changes
