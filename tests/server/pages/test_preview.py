"""Preview of a study while its form is filled: from its plan, and from a table of studies."""

import re

import pytest

from server.pages.forms.questions import QUESTION_FORMS
from tests.server.harness import Served
from tests.server.pages.test_new_study import COMMITTEE, filled, send


async def preview(served: Served, kind: str, **changes: str) -> str:
    answer = await send(served, filled(kind, **changes), "/studies/new/preview")
    assert answer.status_code == 200
    return answer.text


async def test_a_preview_shows_the_bytes_that_a_device_sends(served: Served) -> None:
    for kind in QUESTION_FORMS:
        text = await preview(served, kind)
        assert "Message of a device" in text
        has_command = "blindtally plan --devices 200" in text
        assert has_command == (kind in ("tracked", "adaptive-iblt"))


async def test_a_preview_names_fields_by_their_labels(served: Served) -> None:
    changes = {"name": "", "rounds": "many", "terms.cohort_size": "50"}
    text = await preview(served, "tracked", **changes)
    assert "Rounds: must be a whole number, from 1 to 10,000" in text
    assert "“Devices in a cohort, at least” 100 is above “Devices in a cohort, at most” 50" in text
    assert "What do you want to know" not in text  # the preview does not need it
    assert not re.search("cohort_size|Input should|body", text)


async def test_a_preview_shows_what_one_lying_device_can_spoil(served: Served) -> None:
    assert "in every round: without a registrar" in await preview(served, "tracked")
    text = await preview(served, "tracked", **{"terms.cohorts": "4", "terms.registrar": "09" * 32})
    assert re.search("A lying device can spoil.*1 of 4 cohorts.*in one round", text, re.DOTALL)


async def test_a_preview_of_a_one_shot_sum_has_the_bytes_of_its_message(served: Served) -> None:
    text = await preview(served, "tracked", **COMMITTEE)
    (size,) = re.findall(r"Message of a device.*?([\d.]+) kB", text, re.DOTALL)
    assert 9.8 < float(size) <= 10  # of the 10 kB that the form allows
    assert re.search("Colluders tolerated.*?1.*?of 7 members", text, re.DOTALL)
    assert "Shares of a device" not in text


async def test_a_preview_warns_of_a_sum_without_a_registrar(served: Served) -> None:
    warning = "Devices refuse it"
    assert warning in await preview(served, "tracked")
    assert warning not in await preview(served, "tracked", **{"terms.registrar": "09" * 32})
    assert warning not in await preview(served, "ocms-gf")


async def test_a_preview_warns_of_answers_that_may_show_items_of_few_devices(
    served: Served,
) -> None:
    """Devices with default settings refuse such studies, so nobody would take part."""
    form = {"terms.registrar": "09" * 32, "question.threshold": "4.5"}
    warning = "asks for items held 4.5 times, below 5"
    assert warning in await preview(served, "tracked", **form)
    assert warning not in await preview(served, "tracked", **form | {"question.threshold": "5"})


async def test_a_preview_shows_when_a_cell_is_published(served: Served) -> None:
    for kind in ("triehh", "hierarchical-histogram"):
        assert "A cell is published from" in await preview(served, kind)


async def test_a_preview_warns_of_strings_that_need_more_rounds(served: Served) -> None:
    assert "Rounds needed" not in await preview(served, "triehh")
    assert "with 5, only shorter ones are found" in await preview(served, "triehh", rounds="5")


async def test_a_preview_shows_the_expected_f1_and_the_bytes_for_more(served: Served) -> None:
    text = await preview(served, "tracked")
    assert re.search(r"Expected F1.*?0\.\d\d to [01]\.\d\d", text, re.DOTALL)
    assert re.search(r"Bytes per device for an F1 of 0.9</dt>.*?about [\d,]+", text, re.DOTALL)
    hard, easy = {"rounds": "2", "question.threshold": "5"}, {"question.threshold": "100"}
    assert re.search(r"more than 3\d,\d{3}", await preview(served, "tracked", **hard))
    assert "at most" in await preview(served, "tracked", **easy)


@pytest.mark.parametrize("kind", ["adaptive-iblt", "triehh", "ocms-gf"])
async def test_a_preview_of_another_mechanism_shows_no_f1(served: Served, kind: str) -> None:
    assert "F1" not in await preview(served, kind)
