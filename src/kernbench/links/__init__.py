"""Links in virtual time: collectives, and the transfers that kernels make."""

from kernbench.links.exchanges import ExpertExchange, exchange_kernel, exchange_ps
from kernbench.links.network import Network, Passage, Transferred
from kernbench.links.noise import disturb
from kernbench.links.selection import Asked, Choice, Selector
from kernbench.links.wires import Times
