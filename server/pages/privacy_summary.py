"""Privacy summary of a study: what the server could see, what it could not, and the assumptions.

It combines the facts of `docs/threat-model.md`, of the mechanism's ledger entry and of the study's
terms, and promises nothing that those sources do not promise.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from protocol.api.messages import StudyView
from protocol.committee_terms import AnyCommitteeTerms, VolunteerTerms
from protocol.domains.hashed import Hashed
from protocol.mechanisms.registry import REPORT_MECHANISMS, mechanism_of
from protocol.privacy.events import DpEvent, LedgerEntry, SampleThresholdEvent, SkellamNoiseEvent
from protocol.question_and_plan import Terms
from server.pages.formatting import small_number, summed_group


@dataclass(frozen=True, slots=True)
class PrivacySummary:
    """Sentences on what the server could see, what it could not, and the assumptions."""

    headline: str
    visible: tuple[str, ...]
    hidden: tuple[str, ...]
    assumptions: tuple[str, ...]


def privacy_cost(study: StudyView) -> str:
    """Return the privacy cost of a study for one device, in a few words."""
    question = study.question
    epsilon = getattr(question, "epsilon", None)
    if epsilon is None:
        return "exact sums"
    if question.mechanism in REPORT_MECHANISMS:
        return f"ε {epsilon:g} per report"
    return f"ε {epsilon:g}, δ {small_number(getattr(question, 'delta', 0))}"


def privacy_summary(study: StudyView, entry: LedgerEntry) -> PrivacySummary:
    """Return the summary of `study`, whose entry in the ledger is `entry`."""
    if study.question.mechanism in REPORT_MECHANISMS:
        return _reports_summary(study)
    return PrivacySummary(
        _headline(study, entry.event),
        (*_visible(study, entry.event), _PARTICIPATION_IS_VISIBLE),
        tuple(_hidden(study, entry.event)),
        tuple(_assumptions(study, entry)),
    )


_PARTICIPATION_IS_VISIBLE = (
    "Which devices took part, from which address and when. A device's identity is made for this "
    "study only."
)


def _headline(study: StudyView, event: DpEvent) -> str:
    devices = study.terms.min_summed
    kind = "noisy" if isinstance(event, SkellamNoiseEvent) else "exact"
    return (
        f"Only {kind} sums of at least {devices:,} devices could be read, never which device holds "
        "what."
    )


def _visible(study: StudyView, event: DpEvent) -> Iterator[str]:
    group, mechanism = summed_group(study.terms), mechanism_of(study.question)
    each = f"each {group}" + ", a group of devices" * (study.terms.cohorts > 1)
    if isinstance(event, SkellamNoiseEvent):
        yield f"The noisy counts of {each}. Devices added the noise before the sum was opened."
    elif isinstance(event, SampleThresholdEvent):
        yield (
            "The sampled count of every cell, even of a cell with a single device. The threshold "
            f"of {event.threshold} protects against readers of the answer, not against the server."
        )
    else:
        sums, *others = mechanism.server_sees(study.question, group)
        yield f"The exact sum of {each}: {sums}."
        yield from others
    if isinstance(event, SkellamNoiseEvent | SampleThresholdEvent) and event.join_probability < 1:
        yield (
            f"Which devices joined a round: about {event.join_probability:.1%} of the devices that "
            "learned of it, by a random choice of each device. The server did not see which of "
            "them voted."
        )
    if (for_all := mechanism.plan_readers_see(study.question)) is not None:
        yield for_all


def _hidden(study: StudyView, event: DpEvent) -> Iterator[str]:
    terms = study.terms
    yield from _hidden_by_committee(terms.committee, terms) if terms.committee else _masked(terms)
    if isinstance(study.question.domain, Hashed):
        yield (
            "Strings that are not close to heavy, if the server followed the study's mechanism. It "
            "saw only their keys, from which a string can only be guessed."
        )
    if isinstance(event, SkellamNoiseEvent):
        yield "Which items any one device holds, or whether it holds any, up to the epsilon below."


def _masked(terms: Terms) -> Iterator[str]:
    """Yield sentences on the masks of pairwise sums."""
    group = summed_group(terms)
    yield (
        "Which device holds what. A device masks its table, and the masks cancel only in the "
        f"sum of its {group}."
    )
    dropouts = terms.minimum - terms.min_summed
    yield (
        f"The sum of a smaller group. A {group} has at least {terms.minimum:,} devices. If more "
        f"than {dropouts:,} of {terms.minimum:,} drop out, it fails and is in no answer. "
        "A server that departs from the protocol may exclude a few more, and open a sum that "
        "fails in its last phase."
    )


def _hidden_by_committee(committee: AnyCommitteeTerms, terms: Terms) -> Iterator[str]:
    """Yield sentences on the shares of one-shot sums."""
    size, named = committee.largest, _named_members(committee)
    count = f"{size}" if size == named else f"{size} of {named}"
    yield (
        f"Which device holds what. A device shares its table among {count} "
        f"{_members_name(committee)}. Each of them sends one sum of its shares, over one set of "
        "devices."
    )
    yield (
        f"The sum of a smaller group. The {_members_name(committee)} sum no set of fewer than "
        f"{terms.minimum:,} devices, and agree on it before any of them sends its sum."
    )


def _named_members(committee: AnyCommitteeTerms) -> int:
    """Return the number of parties among which the committee is."""
    if isinstance(committee, VolunteerTerms):
        return committee.volunteers
    return len(committee.members)


def _members_name(committee: AnyCommitteeTerms) -> str:
    return "volunteers" if isinstance(committee, VolunteerTerms) else "operators"


def _committee_assumptions(committee: AnyCommitteeTerms) -> Iterator[str]:
    parameters = committee.parameters
    if isinstance(committee, VolunteerTerms):
        yield (
            f"At most {committee.max_colluders} of the devices that volunteer in the whole study "
            "work together with the server. Then each committee has more than "
            f"{parameters.corrupt} of them with "
            f"probability 2^-{committee.sigma} at most. The registrar draws it, and each device "
            "checks its signature."
        )
        parties, proof = f"{parameters.members} members of a committee", "They are devices."
    else:
        parties = f"{_named_members(committee)} operators that the study names"
        proof = "Devices pin the operators in their policy."
    yield (
        f"Who must collude to see more: more than {parameters.corrupt} of the {parties}. "
        f"{parameters.corrupt + 1} of them could read devices with small counts, and "
        f"{parameters.threshold} every device. {proof}"
    )
    yield (
        f"At most {parameters.dropouts} {_members_name(committee)} are absent, refuse or lie; "
        "otherwise there is no sum."
    )


def _assumptions(study: StudyView, entry: LedgerEntry) -> Iterator[str]:
    terms = study.terms
    yield _collusion(terms)
    if terms.committee:
        yield from _committee_assumptions(terms.committee)
    else:
        yield f"At most {terms.dropout:.0%} of a {summed_group(terms)}'s devices drop out."
    yield (
        "The server need not be honest: it may send different keys, lists and dropouts to "
        "different devices."
    )
    if (trust := mechanism_of(study.question).trust_in_server(study.question)) is not None:
        yield trust
    if terms.registrar is None:
        yield (
            "The server invents no devices. No registrar vouches for them, and a device among "
            "invented ones is not hidden. One program can take all slots of a round. Devices with "
            "default settings refuse this study."
        )
    else:
        yield (
            f"The registrar {terms.registrar[:12]}… signs real devices only. Devices check its "
            "signatures. A device with default settings must know the registrar beforehand."
        )
    yield (
        f"A failure of the protection has probability 2^-{terms.sigma} each time that "
        f"{'members agree' if terms.committee else 'keys are shared'}. X25519, Ed25519, AES, "
        "SHA-256 and the randomness of each device are secure."
    )
    if (assumption := entry.views()["server"].assumption) and entry.views()["server"].private:
        yield f"For the noise: {assumption}."


def _collusion(terms: Terms) -> str:
    """Return the number of devices that may work for the server, and the party that seats them."""
    colluders, group = terms.max_colluders, summed_group(terms)
    if terms.is_seated:
        return (
            f"At most {colluders:,} devices of a round work together with the server. A round has "
            f"at least {terms.cohorts * terms.minimum:,}. The registrar draws which devices share "
            "a cohort; each device checks its signature."
        )
    return (
        f"At most {terms.corrupt:.0%} of a {group}'s devices work together with the server. The "
        f"server decides which devices share a {group}: more than {colluders:,} such identities in "
        "the whole study can fill the smallest one."
    )


def _reports_summary(study: StudyView) -> PrivacySummary:
    question: Any = study.question
    delta = getattr(question, "delta", 0)
    flooding = "No registrar vouches for identities. One program can send all reports of a round."
    exception = f", except with probability {delta:g}" if delta else ""
    return PrivacySummary(
        "Each device randomised its report by itself. No party needs to be trusted with it.",
        (
            (
                "Every device's report, its time and address, and which reports to other studies "
                "are from the same device."
            ),
        ),
        (
            (
                "The items of a device. For any two possibilities, the probabilities of its report "
                f"differ by a factor of at most e^{question.epsilon:g}{exception}."
            ),
        ),
        (
            "The device's own randomness. The server and other devices need not be trusted.",
            "The limit in the device's policy. The costs of several studies add up.",
            *((flooding,) if study.terms.registrar is None else ()),
        ),
    )
