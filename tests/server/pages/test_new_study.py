"""Studies from a form: each kind works with its defaults, and every error is at its field."""

import re
from html import unescape
from pathlib import Path

import httpx

from blindtally.fleet_run.registrar_key_files import load_key_file
from protocol.api.messages import StudyView
from server.pages.forms.questions import QUESTION_FORMS, form_fields
from tests.server.credentials import keyed
from tests.server.harness import Served, study_request
from tests.server.one_shot.rounds import PINNED
from tests.server.pages.browsing import SAME_ORIGIN, post

COMMITTEE = {"terms.sum": "one-shot", "terms.committee.members": "\n".join(PINNED)}


def filled(kind: str, **changes: str) -> dict[str, str]:
    """Return the form as a browser would send it, with a name."""
    form = {field.path: field.default for field in form_fields(QUESTION_FORMS[kind])}
    return form | {"question": kind, "name": f"by {kind}", "key": "0" * 32} | changes


async def send(served: Served, form: dict[str, str], to: str = "/studies/new") -> httpx.Response:
    return await post(served, to, form)


def error_at(page: str, path: str) -> str:
    """Return the error that is shown at a field."""
    name = path.replace(".", "-")
    match = re.search(rf'<p class="fault" id="f-{name}-fault">(.*?)</p>', page)
    assert match, f"no error at {path}"
    return unescape(match[1])


async def test_the_defaults_of_every_kind_make_a_study(served: Served) -> None:
    for kind in QUESTION_FORMS:
        form = await served.client.get(f"/studies/new?question={kind}")
        assert form.status_code == 200
        for field in form_fields(QUESTION_FORMS[kind]):
            assert f'name="{field.path}"' in form.text
            identity = field.path.replace(".", "-")
            assert f'<label for="f-{identity}"' in form.text
        answer = await send(served, filled(kind, key=kind))
        assert answer.status_code == 303, re.findall(r"<li>.*?</li>|fault.*?</p>", answer.text)
        where = answer.headers["location"]
        view = StudyView.model_validate_json((await served.client.get(f"/v1{where}")).content)
        asked = (view.name, view.question.mechanism, view.state)
        assert asked == (f"by {kind}", QUESTION_FORMS[kind].name, "running")
        assert (await served.client.get(where)).status_code == 200


async def test_a_form_of_reports_asks_for_no_committee(served: Served) -> None:
    for kind in ("ocms-gf", "prefix-extension"):
        page = (await served.client.get(f"/studies/new?question={kind}")).text
        assert "terms.committee" not in page
        assert "cohort" not in page.replace("cohort_size", "")
        assert "Reports in a round, at most" in page


async def test_segments_make_a_domain_of_pairs(served: Served) -> None:
    for kind, domain in (("tracked", "hashed-product"), ("number-sums", "product")):
        changes = {"question.domain.segments": "north\n south \n", "key": kind}
        answer = await send(served, filled(kind, **changes))
        assert answer.status_code == 303, re.findall(r"fault.*?</p>", answer.text)
        view = (await served.client.get(f"/v1{answer.headers['location']}")).json()
        assert view["question"]["domain"]["kind"] == domain
        assert view["question"]["domain"]["segments"] == ["north", "south"]
    changes = {"question.domain.segments": "north\nnorth", "question.domain.low": "much"}
    answer = await send(served, filled("number-sums", **changes))
    assert "a segment occurs twice" in error_at(answer.text, "question.domain.segments")
    assert error_at(answer.text, "question.domain.low")


async def test_a_study_may_have_a_goal(served: Served) -> None:
    goal = {"stop_at.precision": "0.95", "stop_at.recall": "0.9"}
    answer = await send(served, filled("tracked", **goal))
    assert answer.status_code == 303, re.findall(r"fault.*?</p>", answer.text)
    where = answer.headers["location"]
    view = (await served.client.get(f"/v1{where}")).json()
    assert view["stop_at"] == {"precision": 0.95, "recall": 0.9}
    page = (await served.client.get(where)).text
    assert "an expected precision of 0.95 and an expected recall of 0.9." in page
    answer = await send(served, filled("tracked", **goal | {"stop_at.recall": "", "key": "1"}))
    assert error_at(answer.text, "stop_at.recall") == "must not be empty"
    answer = await send(served, filled("tracked", **goal | {"stop_at.precision": "1", "key": "2"}))
    assert "above 0 and below 1" in error_at(answer.text, "stop_at.precision")


async def test_the_secret_of_a_webhook_is_shown_once(served: Served) -> None:
    changes = {"webhook": "http://localhost:1/hook"}
    made = (await send(served, filled("tracked", **changes))).text
    assert re.search(r"<code>whsec_[\w+/=]{44}</code>", made)
    (study,) = set(re.findall(r'href="/studies/(\w{16})"', made))
    for path in (f"/studies/{study}", f"/studies/new/from/{study}"):
        page = (await served.client.get(path)).text
        assert not re.search("whsec_|localhost:1", page)
    refused = await send(served, filled("tracked", webhook="http://example.org/", key="2"))
    assert "must be an https:// URL" in error_at(refused.text, "webhook")


async def test_a_study_need_not_start_at_once(served: Served) -> None:
    form = filled("tracked")
    del form["start"]  # as a browser leaves out a box that is not ticked
    where = (await send(served, form)).headers["location"]
    assert (await served.client.get(f"/v1{where}")).json()["state"] == "created"


async def test_the_same_form_sent_twice_is_one_study(served: Served) -> None:
    first, second = [await send(served, filled("tracked")) for _ in range(2)]
    assert first.headers["location"] == second.headers["location"]


async def test_every_fault_is_at_its_field_and_what_was_typed_stays(served: Served) -> None:
    form = filled(
        "adaptive-iblt",
        name="",
        rounds="many",
        **{"question.message_bytes": "0", "question.threshold": "<b>", "terms.corrupt": "2"},
    )
    answer = await send(served, form)
    assert answer.status_code == 422
    for path in ("name", "rounds", "question.message_bytes", "question.threshold", "terms.corrupt"):
        assert error_at(answer.text, path)
    assert 'value="&lt;b&gt;"' in answer.text
    assert "<b>" not in answer.text
    assert 'value="many"' in answer.text
    assert (await served.client.get("/v1/studies")).json()["studies"] == []


async def test_rare_fields_are_folded_unless_they_have_an_error_or_another_value(
    served: Served,
) -> None:
    form = (await served.client.get("/studies/new?question=tracked")).text
    assert re.search(r'id="rare" >\s*<summary>15 more settings', form)
    answer = await send(served, filled("tracked", **{"terms.corrupt": "2"}))
    assert 'id="rare" open' in answer.text
    assert error_at(answer.text, "terms.corrupt")


async def test_a_committee_is_named_in_the_form(served: Served) -> None:
    named = COMMITTEE | {"terms.committee.dropout": "0.3"}
    answer = await send(served, filled("tracked", **named))
    assert answer.status_code == 303
    study = answer.headers["location"].removeprefix("/studies/")
    terms = (await served.client.get(f"/v1/studies/{study}")).json()["terms"]
    assert terms["sum"] == "one-shot"
    assert terms["committee"] == {
        "members": list(PINNED),
        "corrupt": 0.2,
        "dropout": 0.3,
        "size": None,
    }


async def test_a_committee_that_is_missing_wrong_or_not_used_is_reported(served: Served) -> None:
    missing = await send(served, filled("tracked", **{"terms.sum": "one-shot"}))
    assert error_at(missing.text, "terms.committee.members") == "must not be empty"
    short = COMMITTEE | {"terms.committee.members": "abc"}
    assert "3 to 100 items" in error_at(
        (await send(served, filled("tracked", **short))).text, "terms.committee.members"
    )
    unused = await send(served, filled("tracked", **COMMITTEE | {"terms.sum": "pairwise"}))
    assert "a committee is for one-shot sums" in unused.text
    rates = COMMITTEE | {"terms.committee.corrupt": "0.1"}
    rates_page = unescape((await send(served, filled("tracked", **rates))).text)
    assert "a corrupt fraction of 0.1 lets none of 7 members collude" in rates_page


async def test_fields_that_do_not_fit_together_are_reported(served: Served) -> None:
    answer = await send(served, filled("adaptive-iblt", **{"question.message_bytes": "1790"}))
    assert answer.status_code == 422
    assert "This study cannot be created yet." in answer.text
    rates = await send(served, filled("tracked", **{"terms.dropout": "0.5"}))
    why = "“Share of corrupt devices” + 2 “Share of dropouts” is 1.10, above 0.9: assume less"
    assert error_at(rates.text, "terms.corrupt") == why
    poor = await send(served, filled("tracked", population="nobody"))
    assert (poor.status_code, "there is no such population" in poor.text) == (422, True)


async def test_an_unknown_kind_or_body_makes_nothing(served: Served) -> None:
    assert (await served.client.get("/studies/new?question=none")).status_code == 404
    assert (await send(served, {"question": "none"})).status_code == 404
    no_form = await served.client.post("/studies/new", json={}, headers=SAME_ORIGIN)
    assert (no_form.status_code, "text/html" in no_form.headers["content-type"]) == (415, True)
    many = "&".join(f"a{number}=1" for number in range(101)).encode()
    form = SAME_ORIGIN | {"Content-Type": "application/x-www-form-urlencoded"}
    for body in (many, b"\xff\xfe", b"name=%FF%FE"):
        answer = await served.client.post("/studies/new", content=body, headers=form)
        assert answer.status_code == 422
    large = await served.client.post("/studies/new", content=b"a" * 2**20, headers=form)
    assert large.status_code == 413


async def test_the_form_offers_registrars_of_earlier_studies(served: Served) -> None:
    page = (await served.client.get("/studies/new")).text
    assert '<datalist id="registrars"></datalist>' in page
    for name, registrar in (("one <b>", "09" * 32), ("two", "19" * 32), ("one <b>", "09" * 32)):
        terms = study_request()["terms"] | {"registrar": registrar}
        await served.create(name=name, terms=terms)
    page = (await served.client.get("/studies/new")).text
    offered = re.findall(r'<option value="([0-9a-f]{64})">registrar of (.*?)</option>', page)
    assert sorted(offered) == [("09" * 32, "one &lt;b&gt;"), ("19" * 32, "two")]
    assert 'name="terms.registrar"' in page
    assert 'list="registrars"' in page


async def test_an_open_service_makes_a_test_registrar_and_keeps_no_secret(
    served: Served, tmp_path: Path
) -> None:
    form = filled("tracked", **{"terms.cohort_size": "150"})
    page = (await send(served, form, "/studies/new/test-registrar")).text
    (line,) = re.findall(r"<pre><code>(blindtally registrar v1 [0-9a-f]{64})\n</code>", page)
    (public,) = re.findall(r'name="terms.registrar".*? value="([0-9a-f]{64})"', page)
    file = tmp_path / "registrar.key"
    file.write_text(line)  # as a person saves it
    assert load_key_file(file).public.hex() == public
    assert re.search(r'name="terms.cohort_size".*? value="150"', page)
    assert line not in (await served.client.get("/studies/new")).text


async def test_a_closed_service_makes_no_registrar(closed: Served) -> None:
    """Otherwise the operator could invent devices."""
    key = await keyed(closed)
    page = await closed.client.get("/studies/new", headers=key)
    assert "test registrar" not in page.text
    form, headers = filled("tracked"), key | SAME_ORIGIN
    refused = await closed.client.post("/studies/new/test-registrar", data=form, headers=headers)
    assert refused.status_code == 404
