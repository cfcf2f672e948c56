"""A process raises its limit of open files by itself, as far as it may."""

import subprocess
import sys

import pytest

PROGRAM = (
    "import resource;"
    "resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
    "from client.process_files import raise_open_file_limit;"
    "print(raise_open_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
)


@pytest.mark.parametrize(("soft", "hard"), [(40, 900), (300, 300)])
def test_the_limit_of_open_files_is_raised_as_far_as_allowed(soft: int, hard: int) -> None:
    program = PROGRAM.format(soft=soft, hard=hard)
    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert output.split() == [str(hard)] * 3
