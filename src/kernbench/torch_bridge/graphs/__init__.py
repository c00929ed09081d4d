"""CUDA graphs in simulated time: operations are captured once, and replayed with one launch."""

from kernbench.torch_bridge.graphs.capture import Capture
from kernbench.torch_bridge.graphs.cuda import install
