"""The votes of reports, counted by the compiled loops or, where these are missing, by numpy."""

try:
    from protocol.oracles.report_counting_kernel import (
        count_hashed,
        count_preimages,
        count_solutions,
    )
except ImportError:  # not compiled
    from protocol.oracles.numpy_report_counting import (
        count_hashed,
        count_preimages,
        count_solutions,
    )

__all__ = ["count_hashed", "count_preimages", "count_solutions"]
