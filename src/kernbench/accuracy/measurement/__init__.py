"""Times the kernels of kernbench.ops and the vendor's GEMM on a real device, for scoring."""

from kernbench.accuracy.measurement.campaign import (
    GemmShape,
    Measured,
    RowShape,
    Shape,
    default_shapes,
    measure,
    parse_gemm,
    read_shapes,
    write_rows,
)
from kernbench.accuracy.measurement.cuda import CudaDevice
from kernbench.accuracy.measurement.device import NoDeviceError, TimedDevice
