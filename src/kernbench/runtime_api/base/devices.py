"""The devices of a run: the memory, PEs, cache and queues of each SIP."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from kernbench.clock import Callers, DeviceEngine, HbmSharing, Simulation, Stream
from kernbench.hardware import Machine, SipSpec
from kernbench.kernel_time import CacheContents, CacheSteps
from kernbench.memory import BytePool, DeviceMemory, sip_base
from kernbench.runtime_api.base.memory_recorder import MemoryRecorder


@dataclass(frozen=True, slots=True, eq=False)
class Sip:
    """The state of a SIP that a launch needs, found with a single look-up."""

    spec: SipSpec
    launch_ps: int
    """How long a launch keeps the host busy."""
    tcm_bytes: int
    """TCM of one PE."""
    shared_memory_bytes: int
    """The part of the TCM that one program may use for loads that run ahead."""
    pes: DeviceEngine
    """What kernels, fills and copies of all its streams share."""
    cache: CacheContents
    queue: Stream
    """The queue of its default stream."""


class _Sips(dict[int, Sip]):
    """SIPs by their numbers, each made when it is first asked for."""

    def __init__(self, make: Callable[[int], Sip]) -> None:
        self._make = make

    def __missing__(self, sip_id: int) -> Sip:
        sip = self[sip_id] = self._make(sip_id)
        return sip


class Devices:
    """The SIPs of a run, each made when it is first used."""

    def __init__(
        self,
        machine: Machine,
        simulation: Simulation,
        has_data: bool,
        callers: Callers | None = None,
    ) -> None:
        self._machine = machine
        self._simulation = simulation
        self._has_data = has_data
        self._callers = callers
        self._byte_pool = BytePool()
        self._memories: dict[int, DeviceMemory] = {}
        self.memory_recorder: MemoryRecorder | None = None
        """Logs what is allocated, in a run that asks for it."""
        self._sips = _Sips(self._make_sip)
        self.sip: Callable[[int], Sip] = self._sips.__getitem__
        """Returns the PEs, cache and queue of a SIP, made on first use. Each launch asks several
        times: without a call of Python."""
        self._cache_steps: defaultdict[int, CacheSteps] = defaultdict(CacheSteps)
        """The cache steps of each SIP, by the identity of its description, which the machine
        holds."""
        self._more_queues: defaultdict[int, list[Stream]] = defaultdict(list)
        """The queues of each SIP's streams other than the default one."""
        self.hbm = HbmSharing(simulation, lambda sip_id: machine.sip_at(sip_id).power)
        """Commands in progress on the SIPs, which share HBM bandwidth and slow each other down."""

    def memory(self, sip_id: int) -> DeviceMemory:
        """Return the HBM of a SIP."""
        device_memory = self._memories.get(sip_id)
        if device_memory is None:
            capacity_bytes = self._machine.sip_at(sip_id).hbm_bytes
            device_memory = self._memories[sip_id] = DeviceMemory(
                sip_id, capacity_bytes, self._has_data, self._byte_pool
            )
            if self.memory_recorder is not None:
                device_memory.when_allocated = self.memory_recorder.allocated
                device_memory.when_freed = self.memory_recorder.freed
        return device_memory

    def peaks(self) -> dict[int, int]:
        """Return the most bytes that tensors have held at a time, by SIP."""
        return {sip_id: memory.peak_bytes for sip_id, memory in self._memories.items()}

    def _make_sip(self, sip_id: int) -> Sip:
        spec = self._machine.sip_at(sip_id)
        return Sip(
            spec,
            spec.host_launch_ps,
            spec.tcm_bytes,
            spec.shared_memory_bytes,
            DeviceEngine(),
            CacheContents(spec.cache, sip_base(sip_id), self._cache_steps[id(spec)]),
            self._queue(f"sip{sip_id}", sip_id),
        )

    def add_queue(self, sip_id: int) -> Stream:
        """Return the queue of a new stream of a SIP."""
        more = self._more_queues[sip_id]
        queue = self._queue(f"sip{sip_id}.{len(more) + 1}", sip_id)
        more.append(queue)
        return queue

    def _queue(self, name: str, sip_id: int) -> Stream:
        return Stream(self._simulation, name, sip_id, self.hbm, self._callers)

    def queues(self, sip_id: int) -> list[Stream]:
        """Return the queues of all streams of a SIP."""
        return [self.sip(sip_id).queue, *self._more_queues.get(sip_id, ())]

    def start_again(self) -> None:
        """Let all that processes have left on the devices come to nothing: they are gone."""
        for sip_id in self._sips:
            for queue in self.queues(sip_id):
                queue.abandon()
        self._sips.clear()
        self._more_queues.clear()
        self._memories.clear()

    def raise_unseen(self) -> None:
        """Raise the first error of a command that no rank waited for."""
        for sip in self._sips.values():
            sip.queue.raise_unseen()
        for queues in self._more_queues.values():
            for queue in queues:
                queue.raise_unseen()
