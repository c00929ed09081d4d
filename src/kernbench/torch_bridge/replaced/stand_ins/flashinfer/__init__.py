"""FlashInfer's attention and products that engines run on Blackwell; what is lacking says so.

Source: flashinfer-python 0.7.2.
"""

from flashinfer.gemm import bmm_fp8 as bmm_fp8
from flashinfer.prefill import lacking

BatchAttentionWithAttentionSinkWrapper = lacking("BatchAttentionWithAttentionSinkWrapper")
BatchDecodeWithPagedKVCacheWrapper = lacking("BatchDecodeWithPagedKVCacheWrapper")
BatchPrefillWithPagedKVCacheWrapper = lacking("BatchPrefillWithPagedKVCacheWrapper")
BatchPrefillWithRaggedKVCacheWrapper = lacking("BatchPrefillWithRaggedKVCacheWrapper")
get_seq_lens = lacking("get_seq_lens")
nvfp4_quantize_append_paged_kv_cache_with_slot_mapping = lacking(
    "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping"
)
