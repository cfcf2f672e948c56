"""Quantiles of a number of each device, with differential privacy also against the server.

    python examples/latency_quantiles.py [URL]

Each device adds its number to a histogram, and a share of noise. Epsilon bounds what all of the
answer reveals about one device. With few devices the intervals are wide: noise does not shrink.
"""

from random import Random

from crowd import REGISTRAR, service_url, take_part

from blindtally import Analyst, HierarchicalHistogram, NumericInterval, Timeouts

MILLISECONDS = [[Random(number).lognormvariate(5, 0.5)] for number in range(60)]


def main() -> None:
    """Ask for the quartiles of the devices' latencies."""
    question = HierarchicalHistogram(
        threshold=5,
        domain=NumericInterval(low=0, high=1000, alpha=4, length=3),
        epsilon=3,
        delta=1e-6,
        message_bytes=4000,
    )
    with Analyst(service_url()) as analyst:
        study = analyst.create(
            "latency",
            question,
            devices=len(MILLISECONDS),
            rounds=1,
            registrar=REGISTRAR.public.hex(),
            timeouts=Timeouts(idle=30),
        )
        take_part(service_url(), study, MILLISECONDS)
        study.wait()
        for row in study.quantiles([0.25, 0.5, 0.75]):
            print(f"{row.at}: {row.value:.0f} ms ({row.low:.0f} to {row.high:.0f})")
        for loss in study.privacy().parties:
            print(f"{loss.party}: epsilon {loss.epsilon}")


if __name__ == "__main__":
    main()
