"""The capacity model of docs/scaling.md says what a simulation of the same costs finds."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.capacity import (
    MEASURED_COSTS,
    TARGET_UTILISATION,
    LoadSetting,
    capacity_rows,
    cohort_cpu,
    device_cpu,
    model_load,
    simulate_load,
)

QUIET = LoadSetting(n=60, words=10_000, cores=2, per_second=1.0, dropout=0.0)
HURRIED = replace(
    QUIET, n=200, cores=1, response_seconds=0.5
)  # the servers, not the devices, take longest
LOSING = replace(QUIET, dropout=0.05, idle_seconds=1.0)


@pytest.mark.parametrize("setting", [QUIET, HURRIED, LOSING], ids=["quiet", "hurried", "losing"])
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_the_model_and_the_simulation_agree(setting: LoadSetting, load: float) -> None:
    rate = load * setting.cores / device_cpu(MEASURED_COSTS, setting)
    asked = replace(setting, per_second=rate)
    model, found = (
        model_load(MEASURED_COSTS, asked),
        simulate_load(MEASURED_COSTS, asked, 300, Random(1)),
    )
    assert model.load == pytest.approx(load)
    assert found.load == pytest.approx(model.load, rel=0.1)
    assert found.answer == pytest.approx(model.answer, rel=0.15)


def test_costs_grow_as_the_page_says() -> None:
    def grown(cost: Any, **changes: float) -> float:
        return cost(MEASURED_COSTS, replace(LOSING, **changes)) / cost(MEASURED_COSTS, LOSING)

    # Losses are what a cohort's sum costs: each unmasks with every survivor it masked with.
    none = cohort_cpu(MEASURED_COSTS, replace(LOSING, dropout=0.0))
    assert none == pytest.approx(
        LOSING.n * (MEASURED_COSTS.mask + LOSING.words * MEASURED_COSTS.mask_word)
    )
    lost, more = (
        cohort_cpu(MEASURED_COSTS, replace(LOSING, dropout=x)) - none for x in (0.01, 0.02)
    )
    assert more == pytest.approx(2 * lost, rel=0.05)
    assert grown(device_cpu, words=20_000) < 1.1


def test_a_plan_adds_up() -> None:
    small, large = (
        {
            row.name.partition(": ")[2]: row.value
            for row in capacity_rows(MEASURED_COSTS, LOSING, n, 86_400)
        }
        for n in (1e6, 1e9)
    )
    each = "server CPU a device"
    assert large[each] == small[each] == pytest.approx(1e3 * device_cpu(MEASURED_COSTS, LOSING))
    assert all(large[name] == pytest.approx(1000 * small[name]) for name in small if name != each)
    cores = next(value for name, value in small.items() if name.startswith("cores of servers"))
    assert cores == pytest.approx(
        3e6 / 86_400 * device_cpu(MEASURED_COSTS, LOSING) / TARGET_UTILISATION
    )


def test_the_page_has_the_plan_that_the_program_prints() -> None:
    page = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text()
    setting = LoadSetting(1000, 10_000, 4, 1.0)
    for column, devices in ((1, 1e6), (2, 1e9)):
        for row in capacity_rows(MEASURED_COSTS, setting, devices, 86_400):
            name = row.name.partition(": ")[2]
            line = next(x for x in page.splitlines() if x.startswith(f"| {name}"))
            said = float(re.sub(r"[^0-9.]", "", line.split("|")[1 + column]))
            assert said == pytest.approx(row.value, rel=0.06), name
