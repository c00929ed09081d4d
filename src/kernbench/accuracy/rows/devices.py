"""Which machine models the device that a row was measured on."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache

from kernbench.errors import MachineError, UnknownNameError, UsageError, nearest
from kernbench.hardware import Machine, known_machines, load_machine, parse_machine


class Machines:
    """The machines of all devices: those that ship with kernbench, and others given as text.

    ``added`` are (YAML text, name for errors) of machine files, which take precedence over the
    presets for the devices that they list. They are text so that they can be sent to processes.

    Raises:
        MachineError: A text does not describe a machine, or lists no device.
    """

    def __init__(self, added: Iterable[tuple[str, str]] = ()) -> None:
        self.added = tuple(added)
        self._known: dict[str, tuple[str, str] | str] = {}
        self._built: dict[tuple[str, int], Machine] = {}
        self._clusters: dict[tuple[str, str], str] = {}
        for name in known_machines():
            spec = load_machine(name, 1).spec
            if spec.base is None or spec.devices != load_machine(spec.base, 1).spec.devices:
                self._known.update(dict.fromkeys(spec.devices, name))
            self._clusters.update(
                ((source, device), name) for source in spec.clusters for device in spec.devices
            )
        for text, origin in self.added:
            devices = parse_machine(text, origin).spec.devices
            if not devices:
                raise MachineError(
                    f"{origin}: the machine lists no device under devices, so no row is of it; "
                    f"add devices: [NAME] with the name that rows use"
                )
            self._known.update(dict.fromkeys(devices, (text, origin)))

    def __contains__(self, device: str) -> bool:
        return device in self._known

    def machine_of(self, device: str, num_sips: int = 1) -> Machine:
        """Return the machine of a device, with at least ``num_sips`` of them.

        Raises:
            UnknownNameError: No machine lists the device.
            UsageError: The machine has fewer SIPs.
        """
        key = (device, num_sips)
        machine = self._built.get(key)
        if machine is None:
            machine = self._built[key] = self._build(device, num_sips)
        return machine

    def cluster_of(self, source: str, device: str, num_nodes: int, per_node: int) -> Machine | None:
        """Return the nodes that a source measured, None if no machine describes them.

        Raises:
            MachineError: Its nodes have fewer SIPs.
        """
        name = self._clusters.get((source, device))
        return None if name is None else self._cluster(name, num_nodes, per_node)

    def nodes_of(self, source: str, device: str, num_nodes: int, per_node: int) -> Machine:
        """Return the nodes that a source measured, those of the device's machine if none are known.

        Raises:
            UnknownNameError: No machine lists the device.
            UsageError: It is one given as text, of which there is one node.
            MachineError: Its nodes have fewer SIPs.
        """
        nodes = self.cluster_of(source, device, num_nodes, per_node)
        if nodes is not None:
            return nodes
        known = self._of_device(device)
        if not isinstance(known, str):
            raise UsageError(f"the machine given for {device} is one node")
        return self._cluster(known, num_nodes, per_node)

    @lru_cache(maxsize=64)  # noqa: B019 - as long as this object, of which there are few
    def _cluster(self, name: str, num_nodes: int, per_node: int) -> Machine:
        return load_machine(f"{name}:{num_nodes}x{per_node}")

    def _of_device(self, device: str) -> tuple[str, str] | str:
        known = self._known.get(device)
        if known is None:
            raise UnknownNameError(
                f"no machine lists the device {device!r} under devices: "
                f"{nearest(device, self._known)}"
            )
        return known

    def _build(self, device: str, num_sips: int) -> Machine:
        known = self._of_device(device)
        if isinstance(known, str):
            return load_machine(known, num_sips)
        return parse_machine(*known, num_sips)


@cache
def presets() -> Machines:
    """Return the machines that ship with kernbench."""
    return Machines()
