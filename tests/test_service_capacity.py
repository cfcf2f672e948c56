"""The capacity model grows as its costs, and docs/research/scaling.md shows its figures."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.service_capacity import (
    MEASURED_COSTS,
    ONE_SHOT_COSTS,
    TARGET_UTILISATION,
    TRACKED_WORDS,
    LoadSetting,
    capacity,
    cohort_cpu,
    device_cpu,
    one_shot_capacity,
)

DROPOUT_SETTING = LoadSetting(n=60, words=10_000, dropout=0.05)


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
    setting = LoadSetting(1000, 10_000)
    columns = [capacity(MEASURED_COSTS, setting, devices, 86_400) for devices in (1e6, 1e9)]
    columns += [
        one_shot_capacity(ONE_SHOT_COSTS, words, 1e9, 86_400) for words in (20_000, TRACKED_WORDS)
    ]
    page = (Path(__file__).parents[1] / "docs" / "research" / "scaling.md").read_text()
    for number, column in enumerate(columns, 1):
        for name, value in column.items():
            line = next(x for x in page.splitlines() if x.startswith(f"| {name}"))
            shown = float(re.sub(r"[^0-9.]", "", line.split("|")[1 + number]))
            assert shown == pytest.approx(value, rel=0.06), name
