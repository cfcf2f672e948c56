"""Fixtures that run a test with compiled modules and with their references in numpy.

Where no C compiler has made the modules, the tests of these are skipped.
"""

from collections.abc import Iterator
from types import ModuleType

import pytest

from protocol.oracles import numpy_report_counting, report_counting
from protocol.sketches.iblt import numpy_peeling, peeling

KINDS = ("compiled", "numpy")
PEELING = ("add_entry", "peel")


def use(names: tuple[str, ...], user: ModuleType, module: ModuleType) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(user, name, getattr(module, name))
        yield


@pytest.fixture(scope="module", params=KINDS)
def peels(request: pytest.FixtureRequest) -> Iterator[None]:
    module: ModuleType = numpy_peeling
    if request.param == "compiled":
        module = pytest.importorskip("protocol.sketches.iblt.peeling_kernel")
        assert module.INTERFACE == numpy_peeling.INTERFACE, "compile again: pip install -e ."
    yield from use(PEELING, peeling, module)


@pytest.fixture(scope="module", params=KINDS)
def counts_reports(request: pytest.FixtureRequest) -> Iterator[None]:
    module: ModuleType = numpy_report_counting
    if request.param == "compiled":
        module = pytest.importorskip("protocol.oracles.report_counting_kernel")
    yield from use(tuple(report_counting.__all__), report_counting, module)
