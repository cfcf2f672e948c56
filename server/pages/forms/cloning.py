"""Studies that are created like another one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from protocol.api.messages import StudyRequest, StudyView
from protocol.description import FormField, held_kind
from protocol.question_and_plan import DEFAULT_MIN_THRESHOLD, MAX_ROUNDS
from server.db.repositories.studies.progress import StudyProgress
from server.pages.forms.questions import (
    QUESTION_FORMS,
    StudyForm,
    form_fields,
    question_form,
    study_document,
)

_NOT_COPIED: Final = ("name", "start", "webhook", "question.domain.salt")  # each study has its own


def can_clone(study: StudyView) -> bool:
    """Return whether the form has the kind of question of `study`."""
    return study.question.mechanism in QUESTION_FORMS


def form_of(study: StudyView) -> StudyForm:
    """Return the form of `study`, best for its domain; raises ProblemError if there is none."""
    domain = study.question.domain
    held = held_kind(getattr(domain, "inner", domain).kind)
    name = study.question.mechanism
    fitting = (form for form in QUESTION_FORMS.values() if form.name == name)
    return next((f for f in fitting if f.question.held is held), None) or question_form(name)


def values_of(study: StudyView) -> dict[str, str]:
    """Return the values of the form for a study like `study`, which has another name."""
    document = _request_document(study)
    domain = document["question"]["domain"]
    document["question"]["domain"] = domain.get("inner", {}) | domain
    values = {"name": f"{study.name} (copy)"[:200], "start": "on"}
    for field in form_fields(form_of(study)):
        if field.path not in _NOT_COPIED:
            text = _text(field, _value_at(document, field.path))
            values[field.path] = text if text or field.is_optional else field.default
    return values


def next_tries(study: StudyView, progress: StudyProgress) -> dict[str, str]:
    """Return what may list more than `study` did, each with the query of its clone."""
    tries, question = dict[str, str](), study.question
    if not progress.decoded_rounds:  # what a round needs is not in the terms of the list
        return {"the same terms": ""}
    if question.threshold > DEFAULT_MIN_THRESHOLD and not hasattr(question, "epsilon"):
        tries[f"threshold {DEFAULT_MIN_THRESHOLD:g}"] = f"?threshold={DEFAULT_MIN_THRESHOLD:g}"
    if not question.asks_every_round and study.rounds <= MAX_ROUNDS // 2:
        tries[f"{2 * study.rounds} rounds"] = f"?rounds={2 * study.rounds}"
    return tries | {"the same terms": ""}


def lost_fields(study: StudyView, values: Mapping[str, str]) -> list[str]:
    """Return the names of the fields of `study` that the form cannot express."""
    built = study_document(form_of(study), values)
    original = dict(_leaves(_request_document(study)))
    try:
        copied = dict(_leaves(StudyRequest.model_validate(built).model_dump(mode="json")))
    except ValidationError as error:
        # The form cannot express this part, such as a committee of volunteers.
        refused = tuple({f"{_part(fault['loc'], built)}." for fault in error.errors()})
        original = {path: each for path, each in original.items() if path.startswith(refused)}
        copied = dict(_leaves(built))
    differing = [path for path, value in original.items() if copied.get(path) != value]
    fields = _fields(study)
    return [fields[path].label for path in differing if path not in _NOT_COPIED]


def settings(study: StudyView) -> Iterator[tuple[str, Any]]:
    """Yield each value of the question and of the terms of `study`, after its label."""
    fields = _fields(study)
    for path, value in _leaves(_request_document(study)):
        if path.startswith(("question.", "terms.")) and value not in (None, ""):
            yield fields[path].label, dict(fields[path].choices).get(str(value), value)


def _fields(study: StudyView) -> dict[str, FormField]:
    """Return a field for each path in the request of `study`, if possible that of its form."""
    forms = (*QUESTION_FORMS.values(), *([form_of(study)] if can_clone(study) else []))
    known = {each.path: each for form in forms for each in form_fields(form)}
    paths = [path for path, _ in _leaves(_request_document(study))]
    return {path: known.get(path.replace("inner.", "")) or _unknown(path) for path in paths}


def _unknown(path: str) -> FormField:
    words = path.removeprefix("question.").removeprefix("terms.").replace("domain.", "item ")
    words = re.sub("[._]", " ", words.replace("timeouts.", "seconds of "))
    return FormField(path, words.capitalize())


def _part(location: Sequence[int | str], document: Mapping[str, Any]) -> str:
    """Return the part of a study's document that a fault is in, such as "question.domain"."""
    section, *rest = location
    part = next((f".{name}" for name in rest if name in document.get(str(section), {})), "")
    return f"{section}{part}"


def _request_document(study: StudyView) -> dict[str, Any]:
    names = StudyRequest.model_fields.keys() - {"start", "webhook"}  # which no view shows
    fields = {name: getattr(study, name) for name in names}
    return StudyRequest.model_validate(fields).model_dump(mode="json")


def _value_at(document: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - a value of JSON
    value: Any = document
    for name in path.split("."):
        value = (value or {}).get(name)
    return value


def _text(field: FormField, value: Any) -> str:  # noqa: ANN401 - a value of JSON
    """Return a value as text that `field` converts to the same value."""
    if value is None:
        return ""
    if field.widget == "lines":
        return "\n".join(value)
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _leaves(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
