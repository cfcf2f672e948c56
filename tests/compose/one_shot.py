"""Proves the profile `one-shot`: two of seven members and a replica are killed, sums stay exact.

The members and a replica are killed with SIGKILL while a round collects messages. When the round is
over, one of the members is started again, with the key and the journal in its volume. It may miss
the next round, and must serve the last. A member must reach its proxy and no other container.
"""

import json
from dataclasses import replace

from tests.compose.project import Compose, Unproved, say

PROFILE = "--profile=one-shot"
MEMBERS = tuple(f"member-{number}" for number in range(1, 8))
SERVICES = ("database", "server", "proxy", "member-proxy", *MEMBERS, "one-shot-fleet")
DEVICES, ROUNDS = 100, 4  # a member serves sums of 50 devices or more, half of these
_ROUND_SECONDS = 120
_REACHABLE = (
    "import socket, sys\n"
    "for address in sys.argv[1:]:\n"
    "    host, port = address.split(':')\n"
    "    try: socket.create_connection((host, int(port)), 0.5).close()\n"
    "    except OSError: continue\n"
    "    print(address)"
)
_COLLECTING = (
    "FROM cohorts c JOIN one_shot_messages m ON m.cohort = c.id WHERE c.phase = 'collecting'"
)
_ENDED_ROUND = "FROM cohorts WHERE round = {number} AND phase IN ('summed', 'failed')"
_SUMS_BY_ROUND = (
    "SELECT c.round || '=' || count(*) FROM member_messages m JOIN cohorts c ON c.id = m.cohort"
    " WHERE m.kind = 'sum' GROUP BY c.round ORDER BY c.round"
)


def start(compose: Compose) -> Compose:
    """Start the profile; return the project with the devices and rounds of its fleet."""
    compose = replace(compose, devices=DEVICES, rounds=ROUNDS)
    say("building, and starting a committee of seven members")
    compose(PROFILE, "up", "--build", "--detach", "one-shot-fleet")
    return compose


def kill_and_return(compose: Compose) -> None:
    """Kill two members and a replica while messages arrive, and start one member after the round.

    Raises:
        Unproved: if they were killed too late.
    """
    (returning,), (dead,) = map(compose.containers, MEMBERS[:2])
    replica, _ = compose.containers("server")
    compose.wait_for(_COLLECTING, _ROUND_SECONDS)
    compose.docker("kill", returning, dead, replica)
    number, phase = compose.latest_phase()
    if phase in {"summed", "failed"}:
        raise Unproved(f"members were killed too late, in a round that is {phase}")
    say(f"killed {returning}, {dead} and {replica} in round {number}, {phase}")
    compose.wait_for(_ENDED_ROUND.format(number=number), _ROUND_SECONDS)
    compose.docker("start", returning)
    say(f"started {returning} again")


def check_members(compose: Compose) -> None:
    """Check that all but the dead member opened the last sum, each under its own key."""
    sums = dict(line.split("=") for line in compose.query(_SUMS_BY_ROUND).splitlines())
    if sums.get(str(ROUNDS)) != str(len(MEMBERS) - 1):
        raise Unproved(f"the sums of members by round are {sums}")
    say(f"members that opened the sum, by round: {sums}")


def check_reach(compose: Compose) -> None:
    """Check that a member reaches its proxy, and no other container at any of its addresses."""
    (member,) = compose.containers(MEMBERS[0])
    ports = {"database": 5432, "server": 8000, "proxy": 8000, MEMBERS[1]: 9100}
    closed = list[str]()
    for service, port in ports.items():
        for container in compose.containers(service):
            networks = json.loads(
                compose.docker("inspect", "--format={{json .NetworkSettings.Networks}}", container)
            )
            closed += [f"{network['IPAddress']}:{port}" for network in networks.values()]
    probe = ("exec", member, "python", "-c", _REACHABLE, "member-proxy:8000", *closed)
    reached = compose.docker(*probe).split()
    if reached != ["member-proxy:8000"]:
        raise Unproved(f"a member reaches {reached}")
    say(f"a member reaches its proxy and none of {len(closed)} other addresses")
