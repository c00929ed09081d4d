"""Times the kernels of kernbench.ops and the vendor's GEMM on a real device, for scoring."""

from kernbench.accuracy.measurement.campaign import Measured, measure
from kernbench.accuracy.measurement.cuda import CudaDevice
from kernbench.accuracy.measurement.device import NoDeviceError, TimedDevice
from kernbench.accuracy.measurement.shapes import (
    GemmShape,
    RowShape,
    Shape,
    default_shapes,
    parse_gemm,
    read_shapes,
)
from kernbench.accuracy.measurement.writing import write_rows
