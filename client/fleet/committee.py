"""Members of a committee that a fleet simulates: operators, or volunteers among its devices."""

from collections.abc import Iterator

from client.committee.member import CommitteeMember, MemberPolicy, Volunteering
from client.committee.member_journal import MemberJournal
from client.device.committee_service import device_policy
from client.fleet.config_and_results import FleetConfig
from client.fleet.devices import FleetDevices
from protocol.api.messages import CommitteeRound
from protocol.api.phases import Phase
from protocol.committee_terms import VolunteerTerms
from protocol.mechanisms.registry import AnyPlan


class _LeavingVolunteer(CommitteeMember):
    """Volunteer that registers its key and is away afterwards."""

    def _may_serve(self, pending: CommitteeRound) -> bool:
        return pending.phase is Phase.CONVENING and super()._may_serve(pending)


def operators(config: FleetConfig) -> Iterator[tuple[CommitteeMember, str | None]]:
    """Yield the operators of a fleet, each with the fleet's API key."""
    policy = MemberPolicy(
        config.policy.min_cohort, serve_unverified=config.policy.trust_server_identities
    )
    for identity in config.operators:
        yield CommitteeMember(identity, MemberJournal(), policy), config.api_key


async def volunteers(
    devices: FleetDevices, terms: VolunteerTerms
) -> list[tuple[CommitteeMember, str | None]]:
    """Return the first devices of a fleet as volunteers, each with its credential.

    The last of them, `FleetConfig.committee_dropout`, leave after they have registered a key.

    Raises:
        ValueError: if the fleet has too few devices.
        ServiceError, ServiceUnreachableError: if a closed service does not enrol them.
    """
    if len(devices.holdings) < terms.volunteers:
        raise ValueError(
            f"a committee of this study is drawn from {terms.volunteers:,} devices, and this "
            f"fleet has {len(devices.holdings):,}"
        )
    config, policy = devices.config, device_policy(devices.config.policy)
    staying = terms.volunteers - round(config.committee_dropout * terms.volunteers)
    members = list[tuple[CommitteeMember, str | None]]()
    for index in range(terms.volunteers):
        identity, enrolment, credential = await devices.credentials(index)

        async def enrol(_plan: AnyPlan, signature: bytes = enrolment) -> bytes:
            return signature

        kind = CommitteeMember if index < staying else _LeavingVolunteer
        offer = Volunteering(devices.study.id, enrol)
        member = kind(identity, MemberJournal(), policy, volunteering=offer)
        members.append((member, credential or None))
    return members
