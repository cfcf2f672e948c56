"""Resources of a service for its number of devices: a model of measured costs.

The model is arithmetic over the costs of one device, one byte and one cohort (`UnitCosts`,
measured by `benchmarks.service` and `benchmarks.secagg`). A one-shot sum has no phases in which
devices wait. Its model is a rate times the costs of a device (`OneShotCosts`), for a committee of
seven operators with A = D = 1.
"""

from dataclasses import dataclass

from blindtally.planning.sum_costs import CommitteeCost
from secagg.oneshot.parameters import committee_parameters
from secagg.parameters import Assumptions, choose_parameters

PHASES = ("sharing", "checking", "masking", "confirming", "unmasking")  # after enrolling
TARGET_UTILISATION = 0.6  # of the servers, at the daily peak: above it, queues grow
PEAK_TO_MEAN_RATIO = 3  # of a day's arrivals


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Measured costs: CPU seconds, and bytes.

    November 2026, two cores with little other load: `benchmarks.service` with PostgreSQL, rates of
    0.1, 1,000 devices with 10,000 words and 600 with 100,000; the floors of
    `benchmarks.secagg` times 1.3, the ratio that it measures.
    """

    join: float = 1.0e-3  # a server's CPU for a device that enrols
    message: float = 1.05e-3  # and for each later phase: a message, documents, the end of the phase
    byte: float = 3e-9  # a server's CPU per byte that a device sends
    database: float = 0.9e-3  # PostgreSQL's CPU per device
    database_byte: float = 6e-9
    mask: float = 6e-6  # to remove one mask
    mask_word: float = 1e-9  # and per 32-bit word of it
    key_agreement: float = 5e-5  # to agree on a key with a neighbour of a dropout
    holder_bytes: float = 217.0  # that a device sends for each of its holders, in all messages
    download_bytes_per_member: float = 296.0  # and receives for each device in its cohort
    download_bytes_per_holder: float = 234.0  # and for each dealer whose shares it holds (counted)


MEASURED_COSTS = UnitCosts()


@dataclass(frozen=True, slots=True)
class OneShotCosts:
    """Measured costs of a device in a one-shot sum of seven operators: CPU seconds, and bytes.

    November 2026, on two cores with little other load: `benchmarks.oneshot --service 10000` with
    PostgreSQL; members as in the table of `docs/research/one-shot.md`.
    """

    server: float = 0.9e-3  # the open round, the message, and its columns for all members
    byte: float = 3e-9  # of a message; as of an upload in a pairwise sum
    database: float = 0.1e-3
    database_byte: float = 2.7e-8  # each member reads columns of the stored messages
    member: float = 0.115e-3  # of one member
    member_byte: float = 4.4e-8  # of a column
    open_round_bytes: float = 4e3


ONE_SHOT_COSTS = OneShotCosts()
OPERATORS = 7
TRACKED_WORDS = 367  # of 16 bits: the vector of `tracked` in the page on one-shot sums


@dataclass(frozen=True, slots=True)
class LoadSetting:
    """A load: cohorts of `n`, with a share `dropout` of dropouts.

    Devices assume the rate `assumed` for corruption and for dropouts; it determines their number
    of holders.
    """

    n: int
    words: int  # of 32 bits
    dropout: float = 0.05
    assumed: float = 0.1

    @property
    def sent_bytes(self) -> float:
        """Return the bytes that a device sends, which are kept during its round."""
        return 4 * self.words + MEASURED_COSTS.holder_bytes * self.holders

    @property
    def holders(self) -> int:
        """Return the number of a device's holders (k)."""
        return choose_parameters(self.n, Assumptions(self.assumed, self.assumed)).holders

    @property
    def neighbours(self) -> float:
        """Return the mean number of a device's neighbours: selected by it, or selecting it."""
        return 2 * self.holders - self.holders**2 / (self.n - 1)


def phase_cpu(costs: UnitCosts, setting: LoadSetting, phase: str) -> float:
    """Return a server's CPU for a device in a phase."""
    upload = costs.byte * setting.sent_bytes if phase == "masking" else 0.0
    return costs.message + upload


def cohort_cpu(costs: UnitCosts, setting: LoadSetting) -> float:
    """Return a server's CPU to unmask a sum: all dropouts are before the last phase."""
    dropouts = setting.dropout * setting.n
    pairs = dropouts * setting.neighbours * (1 - setting.dropout)
    masks = setting.n - dropouts + pairs
    return masks * (costs.mask + costs.mask_word * setting.words) + pairs * costs.key_agreement


def device_cpu(costs: UnitCosts, setting: LoadSetting) -> float:
    """Return a server's CPU for a device in all phases, with its part of its cohort."""
    phases = sum(phase_cpu(costs, setting, phase) for phase in PHASES) * (1 - setting.dropout)
    return costs.join + phases + cohort_cpu(costs, setting) / setting.n


def capacity(
    costs: UnitCosts, setting: LoadSetting, devices: float, seconds: float
) -> dict[str, float]:
    """Return the resources of a load whose peak is `PEAK_TO_MEAN_RATIO` times its mean."""
    rate = PEAK_TO_MEAN_RATIO * devices / seconds
    sent = setting.sent_bytes
    database = costs.database + costs.database_byte * sent
    received = (
        costs.download_bytes_per_member * setting.n
        + costs.download_bytes_per_holder * setting.holders
    )
    return _service_figures(rate, device_cpu(costs, setting), database, sent, received)


def _service_figures(
    rate: float, server: float, database: float, sent: float, received: float
) -> dict[str, float]:
    """Return figures of a peak `rate`, from CPU seconds and bytes of one device."""
    gigabit = rate * 8 / 1e9
    return {
        "devices a second, peak": rate,
        "server CPU a device": 1e3 * server,  # milliseconds
        f"cores of servers, {TARGET_UTILISATION:.0%} busy at the peak": rate
        * server
        / TARGET_UTILISATION,
        "cores of databases": rate * database / TARGET_UTILISATION,
        "written": rate * sent / 1e6,  # MB/s
        "received from devices": gigabit * sent,  # Gbit/s
        "sent to devices": gigabit * received,
    }


def one_shot_capacity(
    costs: OneShotCosts, words: int, devices: float, seconds: float
) -> dict[str, float]:
    """Return the resources of one-shot sums of `words` 16-bit words, with the same peak."""
    rate = PEAK_TO_MEAN_RATIO * devices / seconds
    layout = CommitteeCost(committee_parameters(OPERATORS, 0.2, 0.2), words, True).layout
    message, column = layout.message_bytes, layout.largest_column
    server = costs.server + costs.byte * message
    database = costs.database + costs.database_byte * message
    member = costs.member + costs.member_byte * column
    return _service_figures(rate, server, database, message, costs.open_round_bytes) | {
        "sent to each member": rate * 8 / 1e9 * column,
        "cores of each member": rate * member / TARGET_UTILISATION,
    }
