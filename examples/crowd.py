"""Simulated devices, and the registrar that enrols them: the parties that an example plays."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from random import SystemRandom
from typing import Any

from blindtally import Device, DeviceState, Identity, Policy, Study

REGISTRAR = Identity.generate(SystemRandom())  # a real one is another party than the server


def service_url() -> str:
    """Return the argument of the program, or the address of a service on this machine."""
    parser = ArgumentParser(
        description=sys.modules["__main__"].__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="Address.")
    return str(parser.parse_args().url)


def take_part(url: str, study: Study, items_by_device: Sequence[Any]) -> None:
    """Let a device with each of the items take part, and print how many finished.

    Raises:
        SystemExit: if a device did not finish.
    """
    policy = Policy(min_cohort=5, registrar=REGISTRAR.public)  # real devices want larger cohorts

    def sign(_registry: object, identity: bytes) -> bytes:
        registry = study.view.registry  # as the analyst created the study
        assert registry is not None
        return REGISTRAR.sign(registry.enrolment_statement(identity))

    with ExitStack() as stack:
        devices = [
            stack.enter_context(
                Device(url, policy, device_state=DeviceState.in_memory(), enrolment_signer=sign)
            )
            for _ in items_by_device
        ]
        parts = [
            device.start(items, study=study.id, wait=60)
            for device, items in zip(devices, items_by_device, strict=True)
        ]
        outcomes = [part.result(timeout=600)[0] for part in parts]
    for state, count in Counter(outcome.state for outcome in outcomes).items():
        print(f"{count} devices: {state}")
    if errors := {outcome.error for outcome in outcomes if outcome.error}:
        raise SystemExit("\n".join(sorted(errors)))
