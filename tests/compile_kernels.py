"""Compiles every kernel once, before parallel tests would each compile it.

    python -m tests.compile_kernels

Compiled kernels are kept next to their source, and compiled again if that changes.
"""

import numpy as np

from protocol.randomness import system_words
from tests.protocol import test_mechanism_laws as laws
from tests.protocol.oracles.examples import usual


def main() -> None:
    """Decode tables of each kind, and count the reports of each oracle."""
    for name, example in laws.EXAMPLES.items():
        if name.startswith("adaptive-iblt"):
            laws.test_no_sum_of_full_contributions_wraps(example)
    for oracle in usual():
        oracle.estimate(oracle.perturb(np.arange(20, dtype=np.uint64), system_words))


if __name__ == "__main__":
    main()
