"""Crashes that happen on many devices, by the text of their stack traces.

    python examples/crash_signatures.py [URL]

A trace is long, and nobody has a list of them. So devices send hashes: the first round finds the
hashes that many devices hold, and the next round, of other devices, fetches their texts.
"""

from crowd import REGISTRAR, service_url, take_part

from blindtally import Analyst, Hashed, Timeouts, Tracked

PARSER = "ValueError: empty header | parse_header (mail.py) | read (mailbox.py) | main (app.py)"
MEMORY = "MemoryError | decode (image.py) | show (gallery.py) | main (app.py)"
DEVICES = [
    [PARSER] if number % 2 else [PARSER, MEMORY] if number % 3 else [f"KeyError: user {number}"]
    for number in range(48)
]


def main() -> None:
    """Ask which traces at least six devices hold, in three rounds of 16 devices each."""
    domain = Hashed(max_bytes=120)
    question = Tracked(threshold=6, contribution=2, domain=domain, message_bytes=14_000)
    with Analyst(service_url()) as analyst:
        study = analyst.create(
            "crashes",
            question,
            devices=16,
            rounds=3,
            registrar=REGISTRAR.public.hex(),
            timeouts=Timeouts(idle=30),
        )
        take_part(service_url(), study, DEVICES)
        study.wait()
        for row in study.heavy_hitters():
            print(f"{row.estimate:5.0f} ({row.low:.0f} to {row.high:.0f})  {row.item}")


if __name__ == "__main__":
    main()
