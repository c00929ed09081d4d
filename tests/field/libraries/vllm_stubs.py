"""The Triton kernels of an installed vLLM, without all that it needs: other modules are mocks."""

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import torch
import triton
import triton.language as tl

# The folder that holds vllm/.
ROOT = str(Path(importlib.util.find_spec("vllm").submodule_search_locations[0]).parent)
REAL_LEAF = (
    "v1.attention.ops",
    "model_executor.layers.mamba.ops",
    "lora.ops",
    "model_executor.layers.quantization.utils.fp8_utils",
    "model_executor.layers.quantization.utils.int8_utils",
    "model_executor.layers.quantization.awq_triton",
    "model_executor.layers.quantization.compressed_tensors.triton_scaled_mm",
    "model_executor.layers.fused_moe.fused_moe",
    "v1.sample.ops.topk_topp_triton",
    "model_executor.layers.rotary_embedding.mrope",
    "triton_utils.allocation",
    "triton_utils.tensor_descriptor",
    "utils.math_utils",
    "model_executor.layers.lightning_attn",
    "v1.kv_cache_interface_",
    "model_executor.layers.fla",
    "model_executor.layers.fused_moe.moe_fused_mul_sum",
    "model_executor.layers.fused_moe.moe_permute_unpermute_",
    "v1.sample.rejection_sampler",
    "v1.spec_decode.utils_",
    "v1.worker.gpu.sample",
    "model_executor.warmup.jit_warmup_triton_helper",
    "model_executor.warmup.jit_warmup",
)
real = 0
stubs = set()


class Stub(types.ModuleType):
    def __getattr__(self, n):
        if n.startswith("__"):
            raise AttributeError(n)
        stubs.add(self.__name__ + "." + n)
        m = MagicMock(name=self.__name__ + "." + n)
        setattr(self, n, m)
        return m


class F(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name != "vllm" and not name.startswith("vllm."):
            return None
        tail = name[5:]
        rel = os.path.join(ROOT, name.replace(".", "/"))
        if any(tail == r or tail.startswith(r + ".") for r in REAL_LEAF):
            if os.path.isdir(rel):
                s = importlib.machinery.ModuleSpec(name, self, is_package=True)
                s.submodule_search_locations = [rel]
                return s
            if os.path.exists(rel + ".py"):
                return importlib.util.spec_from_file_location(name, rel + ".py")
        s = importlib.machinery.ModuleSpec(name, self, is_package=True)
        s.submodule_search_locations = [rel]
        return s

    def create_module(self, spec):
        m = Stub(spec.name)
        return m

    def exec_module(self, m):
        m.__path__ = m.__spec__.submodule_search_locations


sys.meta_path.insert(0, F())
import vllm
import vllm.envs
import vllm.logger
import vllm.platforms
import vllm.triton_utils

vllm.logger.init_logger = lambda n: type(
    "L",
    (logging.LoggerAdapter,),
    {
        "warning_once": lambda s, *a, **k: None,
        "info_once": lambda s, *a, **k: None,
        "debug_once": lambda s, *a, **k: None,
    },
)(logging.getLogger(n), {})


class P:
    device_type = "cuda"
    dispatch_key = "CUDA"

    def is_cuda(s):
        return True

    def is_cuda_alike(s):
        return True

    def __getattr__(s, n):
        if n.startswith("__"):
            raise AttributeError(n)
        if n.startswith("is_"):
            return lambda *a, **k: False
        if n == "fp8_dtype":
            return lambda: torch.float8_e4m3fn
        if n == "has_device_capability":
            return lambda c, *a, **k: (c if isinstance(c, int) else c[0] * 10 + c[1]) <= 90
        if n == "get_device_name":
            return lambda *a: "NVIDIA_H100_80GB_HBM3"
        if n == "get_device_capability":
            return lambda *a: type("C", (tuple,), {"major": 9, "minor": 0, "to_int": lambda s: 90})(
                (9, 0)
            )
        return MagicMock()


vllm.platforms.current_platform = P()
T = vllm.triton_utils
import triton.language.extra.libdevice as tldevice

T.triton = triton
T.tl = tl
T.tldevice = tldevice
T.HAS_TRITON = True
T.LOG2E = 1.4426950408889634
T.use_tensor_descriptor = lambda *a, **k: False
from triton.language.core import _aggregate

T.aggregate = _aggregate
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

T.gluon = gluon
T.gl = gl
import enum

import vllm.v1.kv_cache_interface as kvi


class KVQuantMode(enum.IntEnum):
    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


kvi.KVQuantMode = KVQuantMode
import vllm.utils.torch_utils as tu

tu.direct_register_custom_op = lambda **k: None
tu.is_quantized_kv_cache = lambda d: d.startswith("fp8")
import vllm.envs as E

E.VLLM_TRITON_FORCE_FIRST_CONFIG = False
E.VLLM_BATCH_INVARIANT = False
E.VLLM_TUNED_CONFIG_FOLDER = None
E.VLLM_USE_TRITON_TD = False

import vllm.v1.attention.backends.utils as bu

bu.PAD_SLOT_ID = -1
bu.NULL_BLOCK_ID = 0
kvi.is_quantized_kv_cache = lambda d: d.startswith("fp8")
import vllm.model_executor.layers.quantization.utils.quant_utils as qu

qu.FP8_DTYPE = torch.float8_e4m3fn
qu.get_fp8_min_max = lambda: (-448.0, 448.0)
qu.group_broadcast = None
import vllm.utils.platform_utils as pu

pu.num_compute_units = lambda *a: 132
tu.async_tensor_h2d = lambda d, dtype=None, device=None, **k: torch.tensor(
    d, dtype=dtype, device=device
)
import contextlib

import vllm.utils.gpu_sync_debug as gs

gs.gpu_sync_allowed = contextlib.nullcontext
import vllm.utils.mem_utils as mu

mu.get_max_shared_memory_bytes = lambda *a: 232448

if os.environ.get("FIXACC"):
    torch.accelerator.device_index = lambda i: contextlib.nullcontext()
