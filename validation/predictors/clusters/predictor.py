"""Answers rows of published training steps on many devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module

from kernbench.accuracy.rows import Answer, Machines, Row
from kernbench.errors import KernbenchError
from kernbench.hardware import Machine, changed_machine, load_machine
from validation.predictors.clusters.jobs import ClusterJob, NotDescribedError
from validation.predictors.clusters.kernels import Kernels
from validation.predictors.clusters.memory import memory_of
from validation.predictors.clusters.steps import step_of
from validation.predictors.clusters.wires import ClusterWires, TorusWires
from validation.sources.training_clocks import training_clocks

COMPOSED = "no program was run: steps on many devices are composed of kernels and collectives"
"""Why such a row has no answer."""
_ROOM = "validation.predictors.clusters"
Reader = Callable[[Row], ClusterJob]
READERS: Mapping[str, str] = {
    "mlperf-training": f"{_ROOM}.megatron_rows:mlperf",
    "megatron-bridge-2": f"{_ROOM}.megatron_rows:bridge",
    "megatron-bridge": f"{_ROOM}.megatron_rows:bridge_dense",
    "llama3-tab4": f"{_ROOM}.megatron_rows:llama3",
    "fms-fsdp": f"{_ROOM}.sharded_rows:fms",
    "torchtitan-202412": f"{_ROOM}.sharded_rows:torchtitan",
    "torchtitan-trainy-h200": f"{_ROOM}.sharded_rows:torchtitan",
    "aws-torchtitan": f"{_ROOM}.sharded_rows:torchtitan",
    "torchao-float8-e2e": f"{_ROOM}.sharded_rows:torchao",
    "torchtitan-asynctp": f"{_ROOM}.sharded_rows:async_tp",
    "nanotron-best": f"{_ROOM}.sharded_rows:nanotron",
    "nanotron-tp-comments": f"{_ROOM}.sharded_rows:nanotron",
    "llm-foundry-mpt": f"{_ROOM}.sharded_rows:mpt",
    "mleng-upgrade": f"{_ROOM}.sharded_rows:upgrade",
    "maxtext": f"{_ROOM}.tpu_rows:maxtext",
}
"""By the beginning of a source, who says what its rows ran; the longest counts."""


def reader_of(source: str) -> Reader | None:
    """Return who reads the rows of a source; None where nobody does."""
    found = max((each for each in READERS if source.startswith(each)), default=None, key=len)
    if found is None:
        return None
    module, _, name = READERS[found].partition(":")
    reader: Reader = getattr(import_module(module), name)
    return reader


_MOST_OF_A_NODE = 8


def memory_of_row(row: Row) -> Mapping[str, float] | None:
    """Return the bytes of a rank of a row's run by kind; None where it is not described."""
    reader = reader_of(row.source)
    if reader is None:
        return None
    try:
        return memory_of(reader(row))
    except KernbenchError:
        return None


class ClusterPredictor:
    """Composes steps; machines and times of kernels are kept."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.parts = lru_cache(maxsize=64)(self._make)

    def knows(self, row: Row) -> bool:
        """Return whether a row is of a run on several devices that its source describes."""
        devices = row.optional("n_devices") or row.optional("n_ranks") or 1
        return devices > 1 and row.time_us > 0 and reader_of(row.source) is not None

    def predict(self, row: Row) -> Answer:
        """Return no answer, with what composing gives for a row's step, or for its rate's unit."""
        reader = reader_of(row.source)
        if reader is None:
            return Answer(None, f"no run is described for {row.source}")
        try:
            job = reader(row)
            took_us = self.step_us(job, row.device)
        except KernbenchError as error:
            return Answer(None, str(error).split(";")[0])
        if row.per == "token":
            took_us /= job.batch * job.seq / job.devices
        elif row.per == "TFLOP":
            took_us /= tflop_per_device(job)
        return Answer.composed(took_us, COMPOSED)

    def step_us(self, job: ClusterJob, device: str) -> float:
        """Return the modeled time of a job's step."""
        kernels, wires = self.parts(job.nodes, device, job.conditions)
        if isinstance(wires, ClusterWires) and not wires.node and job.devices > _MOST_OF_A_NODE:
            raise NotDescribedError(f"no nodes of {kernels.machine.name} are described")
        if _crosses_unknown_sockets(kernels.machine, job.devices):
            raise NotDescribedError(
                f"the source does not say how its server joins {kernels.machine.name} over sockets"
            )
        return step_of(job, kernels, wires).total_us

    def _make(
        self, nodes: str, device: str, conditions: tuple[tuple[str, float], ...]
    ) -> tuple[Kernels, ClusterWires | TorusWires]:
        machine: Machine = load_machine(nodes) if nodes else self._machines.machine_of(device)
        of_8_bits, of_16_bits = (
            _changed(machine, {**dict(conditions), **training_clocks(machine, of_16_bits=hot)})
            for hot in (False, True)
        )
        links = machine.spec.links
        is_torus = links is not None and links.topology.startswith("torus")
        wires = TorusWires(of_8_bits) if is_torus else ClusterWires(of_8_bits)
        return Kernels(of_8_bits, of_16_bits), wires


def _changed(machine: Machine, changes: Mapping[str, object]) -> Machine:
    return changed_machine(machine, changes) if changes else machine


def _crosses_unknown_sockets(machine: Machine, devices: int) -> bool:
    """Return whether devices reach as far as a machine's widest span, where its links get slow.

    Between sockets a link is its server's own: the tables of a machine are of one server.
    """
    links = machine.spec.links
    spans = sorted((links.span_bandwidth_gbps or {}).items()) if links is not None else []
    if len(spans) < _SPANS or devices <= spans[-2][0]:
        return False
    return spans[-1][1] < spans[-2][1] * _SLOW_SHARE


_SPANS = 2
_SLOW_SHARE = 0.5


def tflop_per_device(job: ClusterJob) -> float:
    """Return the work of a step as sources count it: three passes, and half of the scores."""
    model = job.model
    tokens = job.batch * job.seq
    scores = 12 * model.layers * model.heads * model.head_dim * job.seq / 2
    weights = model.active_parameters + (model.table if model.tied else 0)
    return tokens * (6 * weights + scores) / job.devices / 1e12
