"""Pages for which people wait for long, by the seconds that they wait.

    python examples/slow_urls.py [URL]

The count of an item is its weight: a device that waits 6 seconds for a page adds 6 to its total. A
device adds at most 8 seconds in all, of any pages, so that no device decides the answer alone.
"""

from crowd import REGISTRAR, service_url, take_part

from blindtally import Analyst, Timeouts, Tracked, Utf8

SECONDS = [
    *[{"/search": 4, "/home": 1}] * 10,
    *[{"/search": 2, "/report": 6}] * 6,
    *[{"/home": 1, f"/user/{number}": 3} for number in range(8)],
]


def main() -> None:
    """Ask for which pages all devices together wait 40 seconds or more."""
    domain = Utf8(max_bytes=16)
    question = Tracked(threshold=40, contribution=8, domain=domain, message_bytes=16_000)
    with Analyst(service_url()) as analyst:
        study = analyst.create(
            "slow pages",
            question,
            devices=len(SECONDS),
            rounds=1,
            registrar=REGISTRAR.public.hex(),
            timeouts=Timeouts(idle=30),
        )
        take_part(service_url(), study, SECONDS)
        study.wait()
        for row in study.heavy_hitters():
            print(f"{row.item:<8} {row.estimate:.0f} s")


if __name__ == "__main__":
    main()
