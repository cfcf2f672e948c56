"""New words that many people type, without seeing what any one person types.

    python examples/keyboard_words.py [URL]

Each device contributes at most three words. The analyst sees those that ten devices or more hold.
"""

from crowd import REGISTRAR, service_url, take_part

from blindtally import Analyst, Timeouts, Tracked, Utf8

PEOPLE = [
    *[["brunch", "emoji", "lol"]] * 12,
    *[["emoji", "selfie"]] * 6,
    *[["my password", "selfie"]] * 2,
    *[["selfie", f"private word {number}"] for number in range(4)],
]


def main() -> None:
    """Ask which words at least ten devices hold."""
    question = Tracked(threshold=10, contribution=3, domain=Utf8(max_bytes=16), message_bytes=9000)
    with Analyst(service_url()) as analyst:
        study = analyst.create(
            "new words",
            question,
            devices=len(PEOPLE),
            rounds=1,
            registrar=REGISTRAR.public.hex(),
            timeouts=Timeouts(idle=30),  # one machine runs all devices
        )
        take_part(service_url(), study, PEOPLE)
        study.wait()
        for row in study.heavy_hitters():
            print(f"{row.item:<10} {row.estimate:.0f}")


if __name__ == "__main__":
    main()
