"""The operator's page: it shows no secret."""

from datetime import timedelta
from random import SystemRandom

from protocol.api.credentials import new_secret, secret_digest
from server.principals import Permission
from tests.server.harness import Served, histogram_request, play
from tests.server.pages.browsing import page_of, post


async def test_keys_and_tokens_are_shown_without_their_secrets(served: Served) -> None:
    access = served.store.access
    name, key = await access.create_key("<i>analyst</i>", (Permission.READ,), timedelta(days=1))
    over, _ = await access.create_key(
        "old", (Permission.READ, Permission.WRITE), timedelta(seconds=1)
    )
    _, token = await access.create_token("phones", 1000, None)
    gone, _ = await access.create_key("gone", (Permission.OPERATE,), None)
    await access.revoke(gone)
    served.clock.advance(60)
    page = await page_of(served, "/operations")
    for secret in (key, token):
        assert secret not in page
        assert secret[4:] not in page
        assert secret_digest(secret).hex() not in page
    assert "&lt;i&gt;analyst&lt;/i&gt;" in page
    for words in (name, over, "key: read", "0 of 1,000 devices enrolled"):
        assert words in page
    for state in ("valid", "expired", "revoked"):
        assert f'<span class="state {state}">' in page


async def test_work_in_progress_and_done_is_shown(each_served: Served) -> None:
    over = await each_served.create()
    await play(each_served, over)
    await each_served.until_closed(over)
    study = await each_served.create()
    await each_served.join(study, 4)
    page = await page_of(each_served, "/operations")
    row = 'enrolling</th><td class="n">1</td><td class="n">4</td>'
    assert row in page
    assert f"<code>close-round {over} 1</code>" in page
    assert each_served.service.orchestrator.heartbeat.name in page


async def test_ledgers_show_the_remaining_budget(served: Served) -> None:
    budget = {"budget": {"epsilon": 2, "delta": 1e-6}}
    await served.client.put("/v1/populations/phones", json=budget)
    assert "No study of this population has been started." in await page_of(served, "/operations")
    study = await served.create(**histogram_request(), population="phones")
    page = await page_of(served, "/operations")
    assert f'<a href="/studies/{study}">' in page
    assert "left of 2 at δ 1e-6, against the public (add-remove)" in page


async def test_a_population_without_a_budget_has_a_line(served: Served) -> None:
    await served.client.put("/v1/populations/phones", json={})
    page = await page_of(served, "/operations")
    assert "No privacy budget. Exact sums of one study at a time." in page


async def test_the_trail_has_pages_and_hostile_subjects_are_text(served: Served) -> None:
    access = served.store.access
    for number in range(60):
        await access.record_audit("key k", "try", f"<script>{number}</script>", "refused")
    page = await page_of(served, "/operations")
    assert "<script>59" not in page
    assert "&lt;script&gt;59" in page
    assert "&lt;script&gt;9&lt;" not in page
    older = await served.client.get("/operations?before=11")
    assert "&lt;script&gt;9&lt;" in older.text


async def test_no_page_ever_shows_the_key_that_opened_it(closed: Served) -> None:
    access = closed.store.access
    every = (Permission.READ, Permission.WRITE, Permission.OPERATE)
    _, key = await access.create_key("test", every, None)
    await post(closed, "/login", {"key": key})
    wrong = new_secret(SystemRandom(), "btk_")
    answer = await post(closed, "/login", {"key": wrong})
    assert wrong not in answer.text
    for path in ("/", "/operations", "/studies/new"):
        assert key not in await page_of(closed, path)
