"""One-shot sums for the committees of the design, compared with one pairwise sum of the same run.

    python -m benchmarks.oneshot [--devices N] [--cohort N] [--data FILE] [--json PATH]
    python -m benchmarks.oneshot --service 10000 [--workers N] [--words W] [--database postgresql]
    python -m benchmarks.oneshot --service 1000 --volunteers 100

Each row has the figure of one-shot sums as its value, and that of a pairwise sum over the same
vector as its reference: for a device, all bytes that it sends and all of its CPU time in a cohort
of `--cohort` devices (rates of 0.1 and 0.2). Vectors are `tracked`, 490 elements of
12 bits (735 bytes), and 1,000 or 5,000 elements of 16 bits. A pairwise sum adds modulo 2^b, and
the lane of a one-shot sum has the smallest suitable prime above. The committee of 300 is drawn from
a million devices, of which a tenth is corrupt and a tenth away.

Times are process CPU milliseconds of one thread. A device's is the median over all devices. Its
first message includes tables that are kept for the next one; a program that takes part once pays
for them. A member's is a mean over all devices, and includes reading its columns. The sum is
opened without the last D members, and must be exact.

One more row has the message of `tracked` in 367 words, of 1,000 devices with 3 items. `--data` adds
the message and F1 score of the last of 30 rounds of 10,000 devices, with their items from a file as
`simulate` reads it, such as words of three characters. Nothing is encrypted in these rounds.
"""

import gc
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import numpy as np

from benchmarks.harness import (
    BenchmarkRow,
    Stopwatch,
    argument_parser,
    fastest_cpu_seconds,
    report,
)
from benchmarks.one_shot_service import OneShotStudy, service_rows
from blindtally.datasets.reader import read_dataset
from blindtally.simulate.round_schedule import RoundSchedule
from blindtally.simulate.scenario import Scenario, SimulationRequest, study_terms
from blindtally.simulate.scores import score
from blindtally.simulate.study import gather
from protocol.domains.known_items import KnownItems
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.round_sizes import message_bytes
from protocol.simulation.study import run_study
from secagg.aggregator import route_shares
from secagg.keys import SIGNATURE_BYTES, Identity
from secagg.oneshot.committee import (
    Committee,
    OneShotSession,
    Registrar,
    sign_committee,
)
from secagg.oneshot.member import Volunteered, volunteer
from secagg.oneshot.message import DeviceMessage, Layout, make_message
from secagg.oneshot.moduli import Moduli
from secagg.oneshot.opening import open_sum
from secagg.oneshot.parameters import CommitteeParameters, drawn_committee_parameters
from secagg.parameters import Assumptions
from secagg.participant import join
from secagg.ring import Lane, Ring, Vector
from secagg.roster import Roster, RosterEntry, ShareCommitments, roster_bytes
from secagg.session import Registry, Session, Transcript
from secagg.shares import ReceivedShares
from tests.support.one_shot_lanes import plans_of

TRACKED, WORDS, WORDS_5000 = Lane(2**12, 490), Lane(2**16, 1000), Lane(2**16, 5000)
MILLI = 1e3


def committees() -> list[tuple[str, CommitteeParameters, tuple[Lane, ...]]]:
    """Return the committees of the design: name, parameters and vectors."""

    def of(m: int, a: int, d: int) -> CommitteeParameters:
        return CommitteeParameters(m, a, d, m - a - d)

    return [
        ("m = 100, A = D = 10", of(100, 10, 10), (TRACKED, WORDS)),
        ("m = 100, A = D = 20", of(100, 20, 20), (TRACKED, WORDS)),
        ("m = 200, A = 20, D = 60", of(200, 20, 60), (TRACKED, WORDS)),
        ("m = 300, drawn", drawn_committee_parameters(300, 0.1, 0.1, 10**6), (TRACKED, WORDS)),
        ("7 operators", of(7, 1, 1), (TRACKED, WORDS, WORDS_5000)),
    ]


@dataclass(frozen=True, slots=True)
class PairwiseDevice:
    """The bytes that a device sends in a pairwise sum, and its CPU milliseconds."""

    nbytes: int
    milliseconds: float

    @classmethod
    def measure(cls, n: int, lane: Lane, rng: Random) -> "PairwiseDevice":
        """Run a pairwise sum of `n` devices without dropouts, and return the means."""
        ring, watch, sent = Ring((lane,)), Stopwatch(), 0
        vector, joined = ring.vector([np.arange(lane.length) % lane.q]), []
        identities = [Identity.generate(rng) for _ in range(n)]
        plan = rng.randbytes(32)
        with watch.time("device"):
            joined = [join(identity, rng) for identity in identities]
            signed = [state.advertise(plan) for state in joined]
        rows = zip(joined, signed, strict=True)
        roster = Roster.of([RosterEntry(s.identity.public, s.public_keys, sig) for s, sig in rows])
        session, body = Session(plan, 0, roster, Assumptions(0.1, 0.2)), roster_bytes(roster)
        shared, shares, checked, masked, inputs = {}, {}, {}, {}, {}
        for slot, state in enumerate(joined):
            with watch.time("device"):
                own = Session(
                    plan, 0, Roster.unpack(body, has_registrar=False), session.assumptions
                )
                shared[slot], shares[slot] = state.share(slot, own, rng)
                sent += len(shares[slot].pack())
            shared[slot].session = session  # the same facts, held once
        received = {slot: of.pack() for slot, of in route_shares(session, shares).items()}
        for slot, shared_state in shared.items():
            with watch.time("device"):
                rows_of_slot = ReceivedShares.unpack(received[slot])
                checked[slot], complaints = shared_state.check(rows_of_slot)
                sent += len(complaints.pack())
        commitments = {slot: message.share_commitment for slot, message in shares.items()}
        transcript = Transcript(session, ShareCommitments.of(commitments))
        for slot, checked_state in checked.items():
            with watch.time("device"):
                masked[slot], inputs[slot] = checked_state.mask(transcript, ring, vector)
                sent += len(inputs[slot].pack())
        survivors, signed_inputs = frozenset(masked), {s: m.signed_input for s, m in inputs.items()}
        confirmed, confirmations = {}, {}
        for slot, masked_state in masked.items():
            with watch.time("device"):
                confirmed[slot], confirmations[slot] = masked_state.confirm(survivors)
        for confirmed_state in confirmed.values():
            with watch.time("device"):
                unmasking = confirmed_state.unmask(confirmations, signed_inputs, rng)
                sent += len(unmasking.pack())
        keys = 3 * 32 + SIGNATURE_BYTES + SIGNATURE_BYTES  # keys, their signature, confirmation
        return cls(sent // n + keys, watch.seconds["device"] / n * MILLI)


@dataclass(slots=True)
class OneShotRound:
    """A committee, and a number of devices that send the same vector."""

    session: OneShotSession
    states: list[Volunteered]
    registrar: Identity
    rng: Random

    @classmethod
    def of(cls, parameters: CommitteeParameters, lane: Lane, rng: Random) -> "OneShotRound":
        plan, registrar = rng.randbytes(32), Identity.generate(rng)
        states = [volunteer(Identity.generate(rng), rng) for _ in range(parameters.members)]
        entries = tuple(state.register(plan, 0) for state in states)
        committee = sign_committee(Committee(plan, 0, parameters, entries), registrar)
        p, registry = Moduli.of(parameters).above(lane.q - 1), Registry(registrar.public, plan)
        ring = Ring((Lane(p, lane.length),))
        session = OneShotSession(committee, ring, Registrar(registrar.public), 2, registry)
        return cls(session, states, registrar, rng)

    def rows(self, name: str, devices: int, pairwise: PairwiseDevice) -> list[BenchmarkRow]:
        """Return the figures of a round of `devices`."""
        session, layout = self.session, Layout.of(self.session)
        vector = session.ring.vector([np.arange(session.ring.lanes[0].length)])
        bodies, times = self._send(vector, devices)
        messages = [DeviceMessage.unpack(body, session) for body in bodies]
        member_seconds, opening, sums = self._sum(messages, vector)
        return [
            BenchmarkRow(f"device: message, {name}", layout.message_bytes, "B", pairwise.nbytes),
            BenchmarkRow(
                f"device: CPU, {name}",
                statistics.median(times[1:]) * MILLI,
                "ms",
                pairwise.milliseconds,
            ),
            BenchmarkRow(
                f"device: first CPU, {name}",
                times[0] * MILLI,
                "ms",
                pairwise.milliseconds,
            ),
            BenchmarkRow(f"member: CPU per device, {name}", member_seconds * MILLI, "ms"),
            BenchmarkRow(f"member: received per device, {name}", layout.largest_column, "B"),
            BenchmarkRow(f"member: sum sent, {name}", sums + SIGNATURE_BYTES, "B"),
            BenchmarkRow(f"server: open, {name}", opening * MILLI, "ms"),
        ]

    def _send(self, vector: Vector, devices: int) -> tuple[list[bytes], list[float]]:
        session, bodies, times = self.session, [], []
        assert session.registry is not None
        for _ in range(devices):
            identity = Identity.generate(self.rng)
            statement = session.registry.enrolment_statement(identity.public)
            enrolment = self.registrar.sign(statement)
            start = time.process_time()
            bodies.append(make_message(session, identity, enrolment, vector, self.rng).pack())
            times.append(time.process_time() - start)
        return bodies, times

    def _sum(self, messages: list[DeviceMessage], vector: Vector) -> tuple[float, float, int]:
        """Return a member's seconds per device, those of opening, and the bytes of a sum."""
        session, parameters = self.session, self.session.parameters
        present = range(1, parameters.members - parameters.dropouts + 1)
        columns = [message.columns(session) for message in messages]
        included = sorted(message.digest(session) for message in messages)
        watch, agreed, signatures = Stopwatch(), {}, {}
        for member in present:
            own = [of_message[member - 1] for of_message in columns]
            with watch.time("member"):
                checked, complaints = self.states[member - 1].check(session, own)
            if complaints.messages:
                raise SystemExit("a member complains about an honest device")
            agreed[member], signatures[member] = checked.agree(included)
        sums = {}
        for member, state in agreed.items():
            with watch.time("verification"):  # of the others' signatures, once per sum
                sums[member] = state.release(signatures)
        opened = open_sum(session, sums)
        lane, expected = session.ring.lanes[0], vector[0].astype(np.uint64) * len(messages)
        if not np.array_equal(opened.total[0], expected % lane.q):
            raise SystemExit("the sum is wrong")
        seconds = watch.seconds["member"] / len(present) / len(messages)
        return (
            seconds,
            fastest_cpu_seconds(lambda: open_sum(session, sums), 0.2),
            session.sharing.sum_bytes,
        )


def message_row(name: str, plan: Any) -> BenchmarkRow:  # noqa: ANN401 (a plan of `tracked`)
    """Return the bytes of the message of a one-shot plan, beside those of a pairwise sum."""
    ring = SUM_MECHANISMS["tracked"].ring(plan)
    pairwise = plan.terms.model_copy(update={"sum": "pairwise", "committee": None})
    sizes = message_bytes(plan.terms, ring), message_bytes(pairwise, ring)
    return BenchmarkRow(f"device: message, {name}", sizes[0], "B", sizes[1])


def data_rows(data: Path, size: int, rounds: int = 30, devices: int = 10_000) -> list[BenchmarkRow]:
    """Play rounds of `tracked` with messages of `size` bytes, and return the last one's and F1."""
    mechanism, dataset = SUM_MECHANISMS["tracked"], read_dataset(data)[0]
    scenario = Scenario(sum="one-shot")
    request = SimulationRequest(
        mechanism=mechanism, data=data, rounds=rounds, devices=devices, scenario=scenario
    )
    known = KnownItems(items=dataset.items, devices=devices, rounds=rounds)
    question = mechanism.question_about(known, {"threshold": 50, "message_bytes": size})
    terms = study_terms(scenario, devices)
    schedule = RoundSchedule.of(request, dataset, rounds, repeats_devices=False)
    held = schedule.rounds(dataset, question.contribution, request.seed)
    outcomes = run_study(mechanism, question, terms, held, Random(request.seed), planned=rounds)
    played = gather(outcomes, question)
    heavy = {item for item, count in played.truth.items() if count >= question.threshold}
    accuracy = score({each.item for each in played.final.heavy_hitters}, heavy)
    name = f"7 operators, {data.name}, round {rounds} of {rounds}"
    return [message_row(name, played.plan), BenchmarkRow(f"F1, {name}", accuracy.f1, "")]


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--devices", type=int, default=200, help="Devices of a one-shot sum.")
    parser.add_argument("--cohort", type=int, default=100, help="Devices of a pairwise sum.")
    parser.add_argument("--data", type=Path, help="Play rounds of tracked with these items.")
    parser.add_argument("--bytes", type=int, default=1700, help="Largest message, for --data.")
    parser.add_argument("--service", type=int, help="Run one sum of this many devices over HTTP.")
    parser.add_argument("--workers", type=int, default=2, help="Processes of devices, for HTTP.")
    parser.add_argument("--words", type=int, default=367, help="16-bit words, for HTTP.")
    parser.add_argument(
        "--volunteers", type=int, default=0, help="Devices as members, with kills of the server."
    )
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="sqlite")
    options = parser.parse_args()
    if options.service:
        study = OneShotStudy(options.service, options.words, options.volunteers)
        rows = service_rows(study, options.workers, options.database)
        report(rows, "pairwise", options.json)
        return
    rng, rows = SystemRandom(), []
    gc.disable()
    PairwiseDevice.measure(30, TRACKED, rng)  # imports, tables, caches
    pairwise = {
        lane: PairwiseDevice.measure(options.cohort, lane, rng)
        for lane in (TRACKED, WORDS, WORDS_5000)
    }
    for name, parameters, lanes in committees():
        for lane in lanes:
            of_lane = f"{name}, {lane.length:,} elements"
            round_of_lane = OneShotRound.of(parameters, lane, rng)
            rows += round_of_lane.rows(of_lane, options.devices, pairwise[lane])
    *_, plan = plans_of("tracked, 1,000 devices", "7 operators")
    rows.append(message_row("7 operators, tracked, 367 words", plan))
    if options.data:
        rows += data_rows(options.data, options.bytes)
    report(rows, "pairwise", options.json)


if __name__ == "__main__":
    main()
