"""The machine description: presets, files, their validation, and exact rates."""

from kernbench.hardware.changes import MachineChange, set_keys
from kernbench.hardware.collective_specs import (
    PLAIN_PROTOCOL,
    CollectivesSpec,
    NcclTable,
    ProtocolSpec,
    RampSpec,
    between_nodes,
)
from kernbench.hardware.editing import edited
from kernbench.hardware.exchange_kernels import ExchangeKernel, load_exchanges
from kernbench.hardware.host_specs import HostOperationSpec, HostSpec
from kernbench.hardware.kernel_constants import (
    KernelConstants,
    KernelFamily,
    KernelLibrary,
    known_libraries,
    library_folder,
    load_library,
    read_families,
)
from kernbench.hardware.link_specs import LinksSpec, ScaleOutSpec
from kernbench.hardware.loading import (
    changed_machine,
    divided_machine,
    known_machines,
    load_machine,
    machine_data,
    machine_of_data,
    machine_text,
    nodes_of,
    parse_machine,
    ranks_of,
)
from kernbench.hardware.machine import Link, Machine, build_machine
from kernbench.hardware.rates import (
    PS_PER_NS,
    PS_PER_US,
    ceil_ps,
    cycles_ps,
    ps_per_byte,
    transfer_ps,
)
from kernbench.hardware.scenarios.chosen import drawing
from kernbench.hardware.scenarios.files import described, with_scenario
from kernbench.hardware.scenarios.interruptions import Interruptions, host_noise
from kernbench.hardware.scenarios.specs import DeathSpec, ScenarioSpec
from kernbench.hardware.schema import machine_schema
from kernbench.hardware.sizes import file_of
from kernbench.hardware.sources import FITTED, fitted_constants, leaves, source_of
from kernbench.hardware.specs import (
    CacheSpec,
    CubeSpec,
    DieToDieSpec,
    GemmSpec,
    HostLinkSpec,
    MachineSpec,
    MathEnergies,
    MathSpec,
    PeSpec,
    PowerSpec,
    SipSpec,
    WarpSpec,
)
from kernbench.hardware.template import machine_template
from kernbench.hardware.topology import NO_LINK, SWITCH

__all__ = [
    "FITTED",
    "NO_LINK",
    "PLAIN_PROTOCOL",
    "PS_PER_NS",
    "PS_PER_US",
    "SWITCH",
    "CacheSpec",
    "CollectivesSpec",
    "CubeSpec",
    "DeathSpec",
    "DieToDieSpec",
    "ExchangeKernel",
    "GemmSpec",
    "HostLinkSpec",
    "HostOperationSpec",
    "HostSpec",
    "Interruptions",
    "KernelConstants",
    "KernelFamily",
    "KernelLibrary",
    "Link",
    "LinksSpec",
    "Machine",
    "MachineChange",
    "MachineSpec",
    "MathEnergies",
    "MathSpec",
    "NcclTable",
    "PeSpec",
    "PowerSpec",
    "ProtocolSpec",
    "RampSpec",
    "ScaleOutSpec",
    "ScenarioSpec",
    "SipSpec",
    "WarpSpec",
    "between_nodes",
    "build_machine",
    "ceil_ps",
    "changed_machine",
    "cycles_ps",
    "described",
    "divided_machine",
    "drawing",
    "edited",
    "file_of",
    "fitted_constants",
    "host_noise",
    "known_libraries",
    "known_machines",
    "leaves",
    "library_folder",
    "load_exchanges",
    "load_library",
    "load_machine",
    "machine_data",
    "machine_of_data",
    "machine_schema",
    "machine_template",
    "machine_text",
    "nodes_of",
    "parse_machine",
    "ps_per_byte",
    "ranks_of",
    "read_families",
    "set_keys",
    "source_of",
    "transfer_ps",
    "with_scenario",
]
