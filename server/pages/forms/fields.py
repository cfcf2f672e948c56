"""Fields of the form that all kinds of question share, each with its path in a StudyRequest.

The API accepts more: every field (`docs/mechanisms/`). The form has what most studies need, with
defaults that work.
"""

from dataclasses import replace
from typing import Final

from protocol.description import FormField

NAME_FIELD: Final = FormField(
    "name", "What do you want to know?", "", "text",
    "In your own words. Devices’ owners and readers of the answer see this sentence.",
)  # fmt: skip
_ROUNDS: Final = FormField("rounds", "Rounds", "5", hint="Sums, one after another.")
_REGISTRAR: Final = FormField(
    "terms.registrar", "Registrar", "", "text",
    "Who knows the real devices: its public key, which blindtally registrar show FILE prints. "
    "Devices refuse a sum without one by default.",
    is_optional=True,
)  # fmt: skip
TERMS_FIELDS: Final = (
    FormField(
        "terms.cohort_size", "Devices in a cohort, at most", "200",
        hint="A cohort is a group of devices that are added up. A round has one, or several.",
    ),
    FormField(
        "terms.minimum", "Devices in a cohort, at least", "100",
        hint="A cohort with fewer devices fails.",
    ),
    _ROUNDS,
    FormField("terms.cohorts", "Cohorts per round", "1", hint="Sums of a round.", is_rare=True),
    FormField(
        "terms.corrupt", "Share of corrupt devices", "0.1", "number",
        "Largest share of a cohort that may work for the server.", is_rare=True,
    ),
    FormField(
        "terms.dropout", "Share of dropouts", "0.2", "number",
        "Largest share of a cohort that may drop out.", is_rare=True,
    ),
    _REGISTRAR,
)  # fmt: skip
REPORT_TERMS_FIELDS: Final = (  # a report needs no other devices, and so no cohorts
    FormField("terms.cohort_size", "Reports in a round, at most", "200", hint="One per device."),
    FormField(
        "terms.minimum", "Reports in a round, at least", "100",
        hint="A round with fewer reports fails.",
    ),
    _ROUNDS,
    replace(
        _REGISTRAR,
        hint="Who knows the real devices: its public key. Only devices that it enrolled may then "
        "send a report.",
    ),
)  # fmt: skip
SUM_FIELDS: Final = (
    FormField(
        "terms.sum", "Sums are opened by", "pairwise", "choice",
        "With a committee a device sends one message and may go, instead of six.",
        choices=(("pairwise", "the devices"), ("one-shot", "a committee")), is_rare=True,
    ),
    FormField(
        "terms.committee.members", "Members of the committee", "", "lines",
        "Public keys of operators, one per line: blindtally member FILE --show prints it. A "
        "device accepts only members that its policy names.",
        is_optional=True, is_rare=True,
    ),
    FormField(
        "terms.committee.corrupt", "Share of corrupt members", "0.2", "number",
        "Largest share of the members that may work for the server.", is_rare=True,
    ),
    FormField(
        "terms.committee.dropout", "Share of absent members", "0.2", "number",
        "Largest share of the members without which a sum still opens.", is_rare=True,
    ),
)  # fmt: skip
MORE_FIELDS: Final = (
    FormField(
        "population", "Population", "", "text",
        "Devices that several studies share, with their privacy budget.",
        is_optional=True, is_rare=True,
    ),
    FormField(
        "tags", "Tags", "", "lines",
        "For the list of studies: lower-case letters, digits and hyphens, one tag per line.",
        is_optional=True, is_rare=True,
    ),
    FormField(
        "webhook", "Webhook", "", "text",
        "Address that gets a signed message when the study has ended. The secret is shown once.",
        is_optional=True, is_rare=True,
    ),
    FormField(
        "timeouts.enrolling", "Seconds to enrol", "600", "number",
        "Longest time in which devices may join a round.", is_rare=True,
    ),
    FormField(
        "timeouts.idle", "Idle seconds", "5", "number",
        "A phase with enough devices ends when no message arrives for this time.", is_rare=True,
    ),
)  # fmt: skip
START_FIELD: Final = FormField("start", "Start at once", "on", "check")
