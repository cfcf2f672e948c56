"""Flower's SecAgg+ in memory: its client's and server's own code, without its messages' transport.

Flower has one graph for masks and shares, and its default connects all clients. It is played so,
and with the number of neighbours that our devices have. Its server is semi-honest, ours is active:
our devices also check signatures and confirm the survivors.
"""

from benchmarks.harness import BenchmarkRow, run_peer
from secagg.parameters import Assumptions, choose_parameters

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
