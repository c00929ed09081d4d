"""Kernels of serving stacks that no program launches by its operations: what each does on tiles."""

from validation.kernels.libraries import FOLDER, load_library
from validation.kernels.linear_attention import (
    LinearProblem,
    causal_convolution,
    channel_convolution,
    chunk_products,
    chunk_scan,
    convolution_update,
    recurrent_decode,
    sequence_convolution,
)
from validation.kernels.mla import LatentKernel, batched_product, latent_decode
from validation.kernels.moe import (
    ExpertLoad,
    MoeKernels,
    MoeProblem,
    expert_kernels,
    expert_products,
)
from validation.kernels.quantize import missed_again, quantize_rows, scale_and_quantize_rows
