"""One cohort's secure sum, compared with the floor that its primitives alone would cost.

    python -m benchmarks.secagg [--devices N ...] [--words W ...] [--peer PYTHON] [--json PATH]

The floors are measured among the work that they are compared with (`harness.py`): keystream and
add, an X25519 agreement, an Ed25519 verification, SHA-256 of arriving vectors, each in the number
that the protocol needs. `ratio` is value / reference. Rows that end in "too" repeat the row before
with work that every implementation of the protocol has: the hashes of the vector and of shares, and
envelopes. Times are process CPU seconds of one thread, because the machines are shared; a device's
are means over all devices of the cohort, and include reading the server's messages. A server checks
the messages, adds the vectors, determines the shares to reveal, and unmasks the sum: one row has
all of it. The messages of 100 devices in a phase are checked in a row. The garbage collector is
off: no device holds the state of a thousand others.

`--peer` is an interpreter that has flwr: its SecAgg+ plays the same sums in the same run, by its
client's and its server's own code, without its messages' transport, and `ratio` is its time / ours.
Flower has one graph for masks and shares, and its default connects all clients. It is played so,
and with the number of neighbours that our devices have. Its server is semi-honest, ours is active:
our devices also check signatures and confirm the survivors.
"""

import sys
from functools import partial

from rich.console import Console
from rich.progress import Progress

from benchmarks.cohort import CohortBenchmark
from benchmarks.harness import BenchmarkRow, Floors, argument_parser, report, run_peer
from secagg.parameters import Assumptions, choose_parameters

WARM_UP_PARTICIPANTS = 30  # participants of a cohort that is not reported: imports, tables, caches
_MAX_CONNECTED_CLIENTS = 200  # 1,000 would take an hour

# Program for an interpreter that has flwr: plays one sum, and prints the CPU seconds of all clients
# and of the server.
_PROGRAM = """
import json, logging, sys, time
from copy import deepcopy
from types import SimpleNamespace
import numpy as np
from flwr.client.mod import secaggplus_mod
from flwr.common import (
    Code, ConfigRecord, FitIns, FitRes, Message, RecordDict, Status, ndarrays_to_parameters)
from flwr.compat.common import recorddict_compat as compat
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # of its messages
logging.disable(logging.CRITICAL)
request = json.load(sys.stdin)
clients, words, shares = request["clients"], request["words"], request["shares"]
parameters = ndarrays_to_parameters([np.ones(words, np.float32)])
proxies = [SimpleNamespace(node_id=number + 1) for number in range(clients)]
contexts = {proxy.node_id: SimpleNamespace(state=RecordDict()) for proxy in proxies}
spent = {"clients": 0.0, "transport": 0.0}
added = []

def fit(message, _context):
    result = FitRes(Status(Code.OK, ""), parameters, 1, {})
    return Message(compat.fitres_to_recorddict(result, keep_input=True), reply_to=message)

class Grid:
    def send_and_receive(self, messages, timeout):
        start = time.process_time()
        received = [deepcopy(message) for message in messages]
        delivered = time.process_time()
        replies = [
            secaggplus_mod(message, contexts[message.metadata.dst_node_id], fit)
            for message in received
        ]
        spent["clients"] += time.process_time() - delivered
        spent["transport"] += delivered - start
        return replies

class Strategy:
    def configure_fit(self, *_given):
        return [(proxy, FitIns(parameters, {})) for proxy in proxies]

    def aggregate_fit(self, _round, results, _failures):
        added.append(results[0][1].parameters)
        return None, {}

context = SimpleNamespace(
    state=SimpleNamespace(
        config_records={MAIN_CONFIGS_RECORD: {Key.CURRENT_ROUND: 1}},
        array_records={MAIN_PARAMS_RECORD: compat.parameters_to_arrayrecord(parameters, True)},
    ),
    strategy=Strategy(),
    client_manager=SimpleNamespace(num_available=lambda: clients),
)
flow = SecAggPlusWorkflow(shares, shares // 2 + 1, max_weight=1.0)
state = WorkflowState()
start = time.process_time()
for step in (
    flow.setup_stage, flow.share_keys_stage, flow.collect_masked_vectors_stage, flow.unmask_stage
):
    assert step(Grid(), context, state), state.failures
whole = time.process_time() - start
from flwr.common import parameters_to_ndarrays
(mean,) = parameters_to_ndarrays(added[0])
assert abs(mean - 1).max() < 0.01, mean
json.dump(spent | {"server": whole - sum(spent.values())}, sys.stdout)
"""


def flower_rows(python: str, n: int, words: int, ours: list[BenchmarkRow]) -> list[BenchmarkRow]:
    """Return Flower's CPU compared with that of `ours`, the rows of one cohort without dropouts."""
    device = next(row.value for row in ours if row.name.startswith("client: all, "))
    (server,) = (
        row.value
        for row in ours
        if row.name.startswith("server: all, ") and row.name.endswith(", 0% dropouts")
    )
    holders = choose_parameters(n, Assumptions(0.2, 0.2)).holders
    neighbours = 2 * holders - holders**2 / (n - 1)
    rows, densities = [], {"as ours": min(n, 2 * round(neighbours / 2) + 1)}
    if n <= _MAX_CONNECTED_CLIENTS:
        densities["its default, all others"] = n
    for density, shares in densities.items():
        spent = run_peer(python, _PROGRAM, {"clients": n, "words": words, "shares": shares})
        name = f"Flower, semi-honest, n={n:,}, {words:,} words, {shares - 1} neighbours ({density})"
        rows += [
            BenchmarkRow(f"{name}: a client", spent["clients"] / n * 1e3, "ms", device),
            BenchmarkRow(f"{name}: the server", spent["server"], "s", server),
        ]
    return rows


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--devices", type=int, action="append", help="100 and 1,000")
    parser.add_argument("--words", type=int, action="append", help="10,000 and 100,000")
    parser.add_argument("--peer", help="An interpreter that has flwr.")
    options = parser.parse_args()
    rows = list[BenchmarkRow]()
    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        for words in options.words or [10_000, 100_000]:
            floors = Floors(words)
            floors.measure()
            CohortBenchmark(WARM_UP_PARTICIPANTS, words, lambda: None, Floors(words)).run()
            for n in options.devices or [100, 1_000]:
                task = progress.add_task(f"{n:,} devices", total=3 * n)
                advance = partial(progress.advance, task)
                ours = CohortBenchmark(n, words, advance, floors).run()
                rows += ours
                if options.peer:
                    rows += flower_rows(options.peer, n, words, ours)
    report(rows, "floor", options.json)


if __name__ == "__main__":
    main()
