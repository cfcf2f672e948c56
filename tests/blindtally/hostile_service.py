"""A service that sends codes for terminals in every text that a document can hold.

It is an OpenID provider, too.
"""

import json
import re
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

from protocol.estimation.estimates import ListQuality
from protocol.mechanisms.registry import MECHANISMS, parse_question
from protocol.privacy.events import ExactSumEvent, LedgerEntry
from protocol.privacy.ledger import Budget, Ledger
from protocol.question_and_plan import Terms
from tests.support.terminal_codes import HOSTILE, MARKUP
from tests.support.views import NOON, cohort_document, round_document, study_document

TEXT = HOSTILE + MARKUP
TERMS = Terms(cohort_size=16, minimum=8)
LISTED_DOMAIN = {"kind": "listed", "items": ["a", "b", TEXT]}
SEGMENT_DOMAIN = {"kind": "hashed-product", "segments": ["a", "b"], "max_bytes": 9}
INTERVAL = {"kind": "interval", "low": 0, "high": 9, "alpha": 10, "length": 1}
TRIE = {"kind": "utf8", "max_bytes": 2}
QUESTIONS: dict[str, dict[str, Any]] = {
    "items": {"mechanism": "tracked", "domain": LISTED_DOMAIN, "message_bytes": 3324},
    "parts": {"mechanism": "tracked", "domain": SEGMENT_DOMAIN, "message_bytes": 3324},
    "sums": {"mechanism": "number-sums", "domain": INTERVAL, "message_bytes": 3324},
    "trie": {
        "mechanism": "triehh",
        "domain": TRIE,
        "message_bytes": 19_524,
        "epsilon": 1,
        "delta": 1e-6,
    },
}
COUNT = {"estimate": 9.0, "standard_error": 1.0, "low": 8.0, "high": 10.0}
HITTERS = [COUNT | {"item": text} for text in (TEXT, f"{TEXT}2", "a\n9,999  forged", "#" + TEXT)]
QUALITY = ListQuality(expected_precision=0.5, expected_recall=0.5, expected_missed=0.5)
NUMBERS = dict.fromkeys(
    ("sum", "mean", "mean_low", "mean_high", "variance", "variance_low", "variance_high"), 1.0
) | {"standard_deviation": 1.0, "standard_deviation_low": 1.0, "standard_deviation_high": 1.0}
CHANGE = {"rate_before": 1.0, "low_before": 1.0, "high_before": 1.0, "rate_after": 2.0}
CHANGE |= {"low_after": 1.0, "high_after": 3.0, "factor": 2.0, "factor_low": 1.0, "p_value": 0.01}
RATE = {"first_round": 1, "last_round": 1, "devices": 9, "how": "counted"}
PENDING_ROUND = {"study": "problem", "round": 1, "deadline": "2999-01-01T00:00:00Z"}
PROBLEM = {"title": TEXT, "detail": TEXT, "errors": [{"location": f"body.{TEXT}", "detail": TEXT}]}


def study(kind: str) -> dict[str, Any]:
    question = parse_question({"threshold": 5, "contribution": 1} | QUESTIONS[kind])
    changes = {"id": kind, "name": TEXT, "population": TEXT, "state": "finished"}
    return study_document(question, TERMS, **changes, end_cause="last-round", round=1, rounds=1)


def round_of(kind: str) -> dict[str, Any]:
    question = parse_question({"threshold": 5, "contribution": 1} | QUESTIONS[kind])
    mechanism = MECHANISMS[question.mechanism]
    plan = mechanism.first_plan(question, TERMS, "s1", 1, Random(1)).model_dump(mode="json")
    cohort = cohort_document("failed", failure=TEXT, blamed={"0": TEXT})
    return round_document(
        plan, state="decoded", cohorts=[cohort], participants=9, distinct=3.0, closed=NOON
    )


def statement() -> dict[str, Any]:
    ledger = Ledger(entries=(LedgerEntry(name="x", event=ExactSumEvent()),))
    document = ledger.statement(1e-6).model_dump(mode="json")
    line = document["lines"][0]
    line["entry"]["name"] = TEXT[:200]
    for view in line["views"].values():
        view["sees"] = view["assumption"] = TEXT
    return document | {"budget": Budget(epsilon=1, delta=1e-6).model_dump(), "remaining_epsilon": 1}


def document(method: str, path: str) -> dict[str, Any] | None:
    """Return the document at `path`, whose parts are percent-encoded, None if there is none."""
    kind = next((each for each in QUESTIONS if f"/{each}" in path), "items")
    hitters = HITTERS if kind != "trie" else []
    round_of_member = PENDING_ROUND | {"phase": "agreeing"}
    seating = PENDING_ROUND | {"joiners": 9}
    page = {"studies": [study(each) for each in QUESTIONS], "next": None}
    rows: list[tuple[str, Any]] = [
        (r"/registrars/[^/]*/seatings", {"rounds": [seating]}),
        (r"/members/[^/]*/rounds", {"rounds": [round_of_member]}),
        (r"/heavy-hitters", {"heavy_hitters": hitters, "summed_rounds": 1, "decoded_rounds": 1}
         | {"next": None, "quality": QUALITY.model_dump()}),
        (r"/rounds", {"rounds": [round_of(kind)], "next": None}),
        (r"/rounds/\d+", round_of(kind)),
        (r"/segments", {"segments": [{"segment": TEXT, "heavy_hitters": 1, "items": HITTERS}],
         "summed_rounds": 1, "decoded_rounds": 1}),
        (r"/numbers", {"beta": 0.05, "results": [
            NUMBERS | {"segment": TEXT, "devices": 9, "rounding": 1.0}]}),
        (r"/(quantiles|ranks|masses|frequencies|cdf)", {"estimator": TEXT, "beta": 0.05,
         "results": [dict.fromkeys(("value", "low", "high"), 0.5) | {"at": TEXT}]}),
        (r"/(changes|compare/.*)", {
            "changes": [CHANGE | {"item": TEXT, "change": "rising", "factor_high": None}],
            "before": [1, 1], "after": [2, 2], "tested": 1, "changed": 1,
            "false_discovery_rate": 0.05, "interval_level": 0.95, "differences": [TEXT]}),
        (r"/series", {"rates": [RATE | {"item": TEXT, "rate": 1.0, "low": 1.0, "high": 1.0}]}),
        (r"/privacy", statement()),
        (r"/populations/.*", {"name": TEXT, "budget": None, "created": NOON}),
        (r"/studies", study(kind) if method == "POST" else page),
        (r"/studies/[^/]*(/start|/stop)?", study(kind)),
    ]  # fmt: skip
    return next((content for end, content in rows if re.fullmatch(f"/v1.*{end}", path)), None)


def provider_document(path: str, issuer: str) -> dict[str, Any] | None:
    """Return the answer of the OpenID provider `issuer`, None at the paths of the service."""
    if path == "/.well-known/openid-configuration":
        ends = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        return {"issuer": issuer} | {end: f"{issuer}/{end}" for end in ends}
    if path == "/token_endpoint":
        header = urlsafe_b64encode(json.dumps({"alg": TEXT[:40]}).encode()).decode().rstrip("=")
        return {"id_token": f"{header}.e30.AAAA"}
    return {"keys": []} if path == "/jwks_uri" else None


class _Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        issuer = f"http://127.0.0.1:{self.server.server_address[1]}"
        content = provider_document(path, issuer) or document(self.command, path)
        status = 200
        if "problem" in path or content is None:
            kind = re.search(r"problem-([a-z-]+)", path)
            name = kind[1] if kind else "not-found"
            content, status = PROBLEM | {"type": f"urn:blindtally:problem:{name}"}, 409
            content["status"] = status
        body = json.dumps(content).encode()
        if "garbage" in path:
            body, status = TEXT.encode("utf-8", "surrogatepass"), 200
        self.rfile.read(int(self.headers.get("content-length", 0)))
        is_made = self.command == "POST" and status == 200 and "token" not in path
        self.send_response(201 if is_made else status)
        media_type = "application/json" if status == 200 else "application/problem+json"
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - names of the library

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        del format, arguments


@contextmanager
def hostile_service() -> Iterator[str]:
    """Yield the address of the service."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
