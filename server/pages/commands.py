"""Commands and programs on the page of a study, for readers to copy: none of them has a key.

The same answer as on the page comes by a command, by Python and by curl.
"""

from typing import Final

from protocol.api.messages import StudyView
from protocol.committee_terms import CommitteeTerms
from protocol.description import AnswerKind
from protocol.domains.base import segments_of
from protocol.domains.hashed import Hashed, HashedProduct
from protocol.domains.numeric import NumericInterval
from protocol.domains.strings import Utf8
from protocol.mechanisms.registry import REPORT_MECHANISMS, mechanism_of
from server.pages.answers import SHOWN_RANKS

_MIN_DOMAIN_NAME_BYTES = 40  # most of the default items are shorter


def fleet_command(study: StudyView, service_url: str) -> str:
    """Return the command; its items are bundled ones if they fit the study's domain."""
    words = ["blindtally fleet", f"--url {service_url}", f"--study {study.id}"]
    domain = study.question.domain
    if isinstance(domain, NumericInterval):
        words.append("--data ages")
    elif isinstance(domain, Utf8) and domain.max_bytes < _MIN_DOMAIN_NAME_BYTES:
        words.append("--data words")
    elif isinstance(domain, HashedProduct) or not isinstance(domain, Hashed | Utf8):
        words.append("--data my.csv")
    if study.terms.registrar is None and study.question.mechanism not in REPORT_MECHANISMS:
        words.append("--no-registrar")
    if isinstance(study.terms.committee, CommitteeTerms):
        words += [f"--member {member}" for member in study.terms.committee.members]
    return " ".join(words)


_PROGRAM: Final = """\
import os
from blindtally import Analyst

with Analyst("{url}", os.environ.get("BLINDTALLY_API_KEY")) as analyst:
    print(analyst.study("{study}").{method}.to_pandas())"""


def copied_queries(study: StudyView, service_url: str) -> dict[str, str]:
    """Return the ways to the answer of a study, without a key, by their labels."""
    options, method, path = _query(study)
    command = f"blindtally query {study.id} --url {service_url}{options}"
    address = f"{service_url}/v1/studies/{study.id}/{path}"
    key = '-H "Authorization: Bearer $BLINDTALLY_API_KEY"'
    return {
        "Command": command,
        "Parquet file": f"{command} --out answer.parquet",
        "Python": _PROGRAM.format(url=service_url, study=study.id, method=method),
        "curl": f"curl {key} '{address}'",
    }


def _query(study: StudyView) -> tuple[str, str, str]:
    """Return the options, the method of the SDK and the path of the query that a page answers."""
    kind = mechanism_of(study.question).answer_kind(study.question)
    if kind is AnswerKind.DISTRIBUTION:
        options = "".join(f" --quantile {rank}" for rank in SHOWN_RANKS)
        path = "quantiles?" + "&".join(f"q={rank}" for rank in SHOWN_RANKS)
        return options, f"quantiles({[*SHOWN_RANKS]})", path
    if kind is AnswerKind.MEANS:
        return "", "numbers()", "numbers"
    if kind is not AnswerKind.NUMBER and segments_of(study.question.domain):
        return "", "segments()", "segments"
    return "", "heavy_hitters()", "heavy-hitters"
