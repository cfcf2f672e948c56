"""Command that lets simulated devices take part in a study, for a page without an answer."""

from protocol.api.messages import StudyView
from protocol.domains.hashed import Hashed, HashedProduct
from protocol.domains.numeric import NumericInterval
from protocol.domains.strings import Utf8
from protocol.mechanisms.registry import REPORT_MECHANISMS

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
    return " ".join(words)
