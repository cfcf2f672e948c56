"""The votes of reports, counted by the compiled loops or, where these are missing, by numpy."""

from protocol.oracles.numpy_report_counting import INTERFACE

try:
    from protocol.oracles.report_counting_kernel import INTERFACE as COMPILED_INTERFACE
    from protocol.oracles.report_counting_kernel import (
        count_hashed,
        count_preimages,
        count_solutions,
    )
except ImportError:  # not compiled, or before kernels had a number
    COMPILED_INTERFACE = 0
if COMPILED_INTERFACE != INTERFACE:
    from protocol.oracles.numpy_report_counting import (
        count_hashed,
        count_preimages,
        count_solutions,
    )

__all__ = ["count_hashed", "count_preimages", "count_solutions"]
