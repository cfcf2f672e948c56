"""What the server could see of a study, what it could not, and under which assumptions, in words.

The truth is in docs/threat-model.md, in what a mechanism says that its rounds tell (its entry in
the ledger, `protocol/privacy/entries.py`) and in the terms of the study; here it is put together
for one study. Nothing is promised here that is not promised there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from protocol.hashed import Hashed
from protocol.mechanism import Terms
from protocol.mechanisms import REPORTING
from protocol.messages import StudyView
from protocol.privacy.entries import Entry, Noise, SampleThreshold
from protocol.privacy.entries import Mechanism as Loss


@dataclass(frozen=True, slots=True)
class Promise:
    """Sentences: what the server saw, what stayed hidden from it, and what that rests on."""

    gist: str
    saw: tuple[str, ...]
    hidden: tuple[str, ...]
    assuming: tuple[str, ...]


def promise(study: StudyView, entry: Entry) -> Promise:
    """Return what is promised to the devices of `study`; `entry` is its own in the ledger."""
    if study.question.mechanism in REPORTING:
        return _of_reports(study)
    return Promise(
        _gist(study, entry.mechanism),
        (*_seen(study, entry.mechanism), _PRESENCE),
        tuple(_hidden(study, entry.mechanism)),
        tuple(_assumed(study.terms, entry)),
    )


_PRESENCE = "Which devices took part, by an identity made for this study, from where and when."


def _gist(study: StudyView, loss: Loss) -> str:
    least = study.terms.assumptions.quorum(study.terms.minimum)
    shown = "noisy" if isinstance(loss, Noise) else "exact"
    return f"Only {shown} sums of {least:,} devices or more could be read, and no device by itself."


def _seen(study: StudyView, loss: Loss) -> Iterator[str]:
    if isinstance(loss, Noise):
        yield "Of each cohort: counts that devices have added noise to, before the sum was opened."
    elif isinstance(loss, SampleThreshold):
        yield (
            "The sampled count of every cell, also of those with a single device: the threshold "
            f"of {loss.threshold} protects from whoever sees the answer, not from the server."
        )
    else:
        yield "The exact sum of each cohort: the counts of common items, which is the answer."
        yield (
            "A rare item too, if its device sampled it: that somebody holds it, though not who. "
            "This is no differential privacy."
        )
    if isinstance(loss, Noise | SampleThreshold) and loss.invited < 1:
        yield (
            f"Which devices joined a round: about {loss.invited:.1%} of those that heard of it, "
            "each by its own coin. Which of these voted, it did not see."
        )
    if study.question.mechanism == "tracked":
        known = "keys of items" if isinstance(study.question.domain, Hashed) else "items"
        yield (
            f"Not the server alone: each plan lists the {known} found so far, and every device "
            "that may join a round can read it."
        )


def _hidden(study: StudyView, loss: Loss) -> Iterator[str]:
    terms = study.terms
    yield (
        "What any one device holds. It sends its table under a mask; masks cancel in the sum of "
        "the cohort, and only there."
    )
    lost = terms.minimum - terms.assumptions.quorum(terms.minimum)
    yield (
        f"The sum of a smaller group: a cohort has {terms.minimum:,} devices or more, and with "
        f"more than {lost:,} of so many lost it fails and nothing of it is shown."
        + (" A server that lies may take a handful more out of it." * (terms.mode == "active"))
    )
    if isinstance(study.question.domain, Hashed):
        yield "Strings that are not about to be heavy: it saw their keys, which one can only guess."
    if isinstance(loss, Noise):
        yield "Which items any one device holds, or that it holds any, up to the epsilon below."


def _assumed(terms: Terms, entry: Entry) -> Iterator[str]:
    yield (
        f"At most {terms.corrupt:.0%} of a cohort's devices working together with the server, and "
        f"at most {terms.dropout:.0%} vanishing."
    )
    if terms.mode == "active":
        yield "Not on an honest server: it may tell each device other keys, lists and losses."
    else:
        yield "A server that keeps to the protocol: one that lies could read more."
    if terms.registrar is None:
        yield (
            "The server inventing no devices: no registrar vouches for them, and a device that is "
            "surrounded by made-up ones is not hidden."
        )
    else:
        yield f"The registrar {terms.registrar[:12]}… signing real devices only; devices check it."
    yield (
        f"Odds of 2^-{terms.sigma} each time that keys are shared; X25519, Ed25519, AES, SHA-256; "
        "the randomness of each device."
    )
    if (assumption := entry.views()["server"].assumption) and entry.views()["server"].private:
        yield f"Of the noise: {assumption}."


def _of_reports(study: StudyView) -> Promise:
    asked: Any = study.question
    epsilon, delta = asked.epsilon, getattr(asked, "delta", 0)
    but = f", but for odds of {delta:g}" if delta else ""
    return Promise(
        "Each device randomised its report by itself; nobody has to be trusted with it.",
        (
            (
                "Every device's report, when and from where it came, and which reports to other "
                "studies are of the same device."
            ),
        ),
        (
            (
                "What a device holds: whatever that is, the odds of its report change by a factor "
                f"of e^{epsilon:g} at most{but}."
            ),
        ),
        (
            "The device's own randomness, and nothing of the server or of others.",
            "What it spends in several studies, which adds up; its policy bounds that.",
        ),
    )
