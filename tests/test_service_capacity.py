"""The capacity model of docs/scaling.md agrees with a simulation of the same costs."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.service_capacity import (
    MEASURED_COSTS,
    ONE_SHOT_COSTS,
    TARGET_UTILISATION,
    TRACKED_WORDS,
    LoadSetting,
    capacity,
    cohort_cpu,
    device_cpu,
    model_load,
    one_shot_capacity,
    simulate_load,
)

IDLE_SETTING = LoadSetting(n=60, words=10_000, cores=2, per_second=1.0, dropout=0.0)
# The servers, not the devices, take longest.
BUSY_SETTING = replace(IDLE_SETTING, n=200, cores=1, response_seconds=0.05)
DROPOUT_SETTING = replace(IDLE_SETTING, dropout=0.05, idle_seconds=1.0)


@pytest.mark.parametrize(
    "setting", [IDLE_SETTING, BUSY_SETTING, DROPOUT_SETTING], ids=["idle", "busy", "dropouts"]
)
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_the_model_and_the_simulation_agree(setting: LoadSetting, load: float) -> None:
    rate = load * setting.cores / device_cpu(MEASURED_COSTS, setting)
    loaded = replace(setting, per_second=rate)
    model = model_load(MEASURED_COSTS, loaded)
    simulated = simulate_load(MEASURED_COSTS, loaded, 300, Random(1))
    assert model.load == pytest.approx(load)
    assert simulated.load == pytest.approx(model.load, rel=0.1)
    assert simulated.answer == pytest.approx(model.answer, rel=0.15)


def test_costs_grow_as_on_the_page() -> None:
    def grown(cost: Any, **changes: float) -> float:
        changed = replace(DROPOUT_SETTING, **changes)
        return cost(MEASURED_COSTS, changed) / cost(MEASURED_COSTS, DROPOUT_SETTING)

    # Dropouts cost most of a sum: each is unmasked with all survivors that it masked with.
    none = cohort_cpu(MEASURED_COSTS, replace(DROPOUT_SETTING, dropout=0.0))
    assert none == pytest.approx(
        DROPOUT_SETTING.n * (MEASURED_COSTS.mask + DROPOUT_SETTING.words * MEASURED_COSTS.mask_word)
    )
    few, many = (
        cohort_cpu(MEASURED_COSTS, replace(DROPOUT_SETTING, dropout=x)) - none for x in (0.01, 0.02)
    )
    assert many == pytest.approx(2 * few, rel=0.05)
    assert grown(device_cpu, words=20_000) < 1.1


def test_a_plan_adds_up() -> None:
    small, large = (capacity(MEASURED_COSTS, DROPOUT_SETTING, n, 86_400) for n in (1e6, 1e9))
    each = "server CPU a device"
    assert (
        large[each]
        == small[each]
        == pytest.approx(1e3 * device_cpu(MEASURED_COSTS, DROPOUT_SETTING))
    )
    assert all(large[name] == pytest.approx(1000 * small[name]) for name in small if name != each)
    cores = next(value for name, value in small.items() if name.startswith("cores of servers"))
    assert cores == pytest.approx(
        3e6 / 86_400 * device_cpu(MEASURED_COSTS, DROPOUT_SETTING) / TARGET_UTILISATION
    )


def test_the_page_shows_the_plan() -> None:
    setting = LoadSetting(1000, 10_000, 4, 1.0)
    columns = [capacity(MEASURED_COSTS, setting, devices, 86_400) for devices in (1e6, 1e9)]
    columns += [
        one_shot_capacity(ONE_SHOT_COSTS, words, 1e9, 86_400) for words in (20_000, TRACKED_WORDS)
    ]
    page = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text()
    for number, column in enumerate(columns, 1):
        for name, value in column.items():
            line = next(x for x in page.splitlines() if x.startswith(f"| {name}"))
            shown = float(re.sub(r"[^0-9.]", "", line.split("|")[1 + number]))
            assert shown == pytest.approx(value, rel=0.06), name
