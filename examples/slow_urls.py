"""Pages for which many people wait for long.

    python examples/slow_urls.py [URL]

A device's items are the pages for which it waited three seconds or longer. It counts each page
once, so that no device decides the answer alone.
"""

from crowd import REGISTRAR, service_url, take_part

from blindtally import Analyst, Timeouts, Tracked, Utf8

SECONDS = [
    *[{"/search": 4, "/home": 1}] * 10,
    *[{"/search": 2, "/report": 6}] * 6,
    *[{"/home": 1, f"/user/{number}": 3} for number in range(8)],
]


LONG_SECONDS = 3


def main() -> None:
    """Ask for which pages eight devices or more wait for long."""
    domain = Utf8(max_bytes=16)
    question = Tracked(threshold=8, contribution=4, domain=domain, message_bytes=16_000)
    with Analyst(service_url()) as analyst:
        study = analyst.create(
            "slow pages",
            question,
            devices=len(SECONDS),
            rounds=1,
            registrar=REGISTRAR.public.hex(),
            timeouts=Timeouts(idle=30),
        )
        slow = [[page for page, t in each.items() if t >= LONG_SECONDS] for each in SECONDS]
        take_part(service_url(), study, slow)
        study.wait()
        for row in study.heavy_hitters():
            print(f"{row.item:<8} {row.estimate:.0f} devices")


if __name__ == "__main__":
    main()
