"""Time the kernels of kernbench.ops and the vendor's GEMM on a real device, as rows to score."""

from kernbench.measurement.campaign import Measured, measure
from kernbench.measurement.cuda import CudaDevice
from kernbench.measurement.device import Device, NoDeviceError
from kernbench.measurement.shapes import (
    GemmShape,
    RowShape,
    Shape,
    default_shapes,
    parse_gemm,
    read_shapes,
)
from kernbench.measurement.writing import write_rows

__all__ = [
    "CudaDevice",
    "Device",
    "GemmShape",
    "Measured",
    "NoDeviceError",
    "RowShape",
    "Shape",
    "default_shapes",
    "measure",
    "parse_gemm",
    "read_shapes",
    "write_rows",
]
