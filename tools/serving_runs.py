"""Serve a small model with an engine, unmodified, and compare its tokens.

    python tools/serving_runs.py PATH_TO/nano-vllm [--tensor-parallel 1 2] [--machine h100-sxm]
    python tools/serving_runs.py vllm --tensor-parallel 1 [--model qwen3 qwen3-moe deepseek-v3]
    python tools/serving_runs.py vllm --tensor-parallel 1 --server
    python tools/serving_runs.py vllm --tensor-parallel 1 --features speculation pipeline

nano-vllm is a checkout; vLLM is installed, and runs eagerly in the process of its program, or as
``vllm serve``, which starts its engine's processes itself and answers a client of the same run.
The model has random weights in float16; the reference is Hugging Face's transformers on the CPU in
float32, greedy. nano-vllm compiles its layers, captures its CUDA graphs and starts its worker
processes by itself; its flash_attn is kernbench's stand-in. Needs transformers. The exit status is
the number of runs whose tokens differ.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WORDS = 512
LENGTHS = (5, 17, 40, 100, 300)
NEW_TOKENS = 24
CLIENT = f"""
import json, sys, time
from nanovllm import LLM, SamplingParams

def main():
    model, ranks, asked, found = sys.argv[1:]
    prompts = json.load(open(asked))
    # Its key-value cache takes a share of the device's memory, of which the host has less.
    llm = LLM(model, tensor_parallel_size=int(ranks), max_model_len=512, max_num_seqs=8,
              max_num_batched_tokens=512, gpu_memory_utilization=0.02)
    greedy = {{"temperature": 1e-5, "ignore_eos": True}}
    llm.generate(prompts[:1], SamplingParams(max_tokens=2, **greedy), use_tqdm=False)
    began = time.perf_counter()
    made = llm.generate(
        prompts, SamplingParams(max_tokens={NEW_TOKENS}, **greedy), use_tqdm=False
    )
    took = time.perf_counter() - began
    tokens = [each["token_ids"] for each in made]
    json.dump(tokens, open(found, "w"))
    count = sum(map(len, tokens))
    print(f"{{count}} tokens in {{took * 1e3:.2f}} ms: {{count / took:.0f}} tokens/s")

if __name__ == "__main__":
    main()
"""


VLLM = f"""
import json, sys, time
from vllm import LLM, SamplingParams

model, ranks, asked, found, more = sys.argv[1:]
prompts = [{{"prompt_token_ids": each}} for each in json.load(open(asked))]
arguments = {{"tensor_parallel_size": int(ranks), "enforce_eager": True}} | json.loads(more)
llm = LLM(model, max_model_len=512, max_num_seqs=8, max_num_batched_tokens=512,
          gpu_memory_utilization=0.02, **arguments)
greedy = SamplingParams(max_tokens={NEW_TOKENS}, temperature=0, ignore_eos=True)
made = llm.generate(prompts, greedy, use_tqdm=False)
json.dump([list(each.outputs[0].token_ids) for each in made], open(found, "w"))
"""
SERVER = f"""
import asyncio, json, multiprocessing, sys

import aiohttp

URL = "http://127.0.0.1:8000"

def serve(model, ranks):
    sys.argv = ["vllm", "serve", model, "--tensor-parallel-size", ranks, "--max-model-len", "512",
                "--max-num-seqs", "8", "--max-num-batched-tokens", "512", "--port", "8000",
                "--gpu-memory-utilization", "0.02", "--enforce-eager"]
    from vllm.entrypoints.cli.main import main
    main()

async def answer(session, model, prompt):
    asked = {{"model": model, "prompt": prompt, "max_tokens": {NEW_TOKENS}, "temperature": 0,
             "ignore_eos": True, "return_token_ids": True}}
    async with session.post(URL + "/v1/completions", json=asked) as response:
        return (await response.json())["choices"][0]["token_ids"]

async def client(server, model, prompts):
    async with aiohttp.ClientSession() as session:
        while server.is_alive():
            try:
                async with session.get(URL + "/health") as response:
                    if response.status == 200:
                        break
            except aiohttp.ClientError:
                await asyncio.sleep(1)
        return await asyncio.gather(*(answer(session, model, each) for each in prompts))

if __name__ == "__main__":
    model, ranks, asked, found = sys.argv[1:]
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(model, ranks))
    server.start()
    tokens = asyncio.run(client(server, model, json.load(open(asked))))
    json.dump(tokens, open(found, "w"))
    server.terminate()
    server.join()
"""
OF_ALL = {
    "vocab_size": WORDS,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "max_position_embeddings": 1024,
    # Larger than usual: logits of random weights are nearly equal otherwise.
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", _HEADS),
    "qwen3-moe": ("Qwen3Moe", {**_HEADS, **_EXPERTS, "num_experts": 8, "norm_topk_prob": True}),
    "deepseek-v3": (
        "DeepseekV3",
        {
            **_EXPERTS,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "q_lora_rank": 128,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "topk_method": "noaux_tc",
        },
    ),
}
"""The name of each in transformers, and what its configuration has besides."""
_BY_TORCHRUN = {"distributed_executor_backend": "external_launcher"}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "compiled": {"enforce_eager": False},
    "speculation": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_max": 4,
        }
    },
    "offloading": {"cpu_offload_gb": 0.001},
    "pipeline": {"pipeline_parallel_size": 2, **_BY_TORCHRUN},
    "experts": {"tensor_parallel_size": 2, "enable_expert_parallel": True, **_BY_TORCHRUN},
}
"""What else vLLM is asked for; those by torchrun are of two ranks."""
VARIABLES = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1"}
ONE_PROCESS = VARIABLES | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def main() -> int:
    """Run them and return how many gave other tokens than the reference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a checkout of nano-vllm, or vllm")
    parser.add_argument("--tensor-parallel", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--machine", default="h100-sxm")
    parser.add_argument("--model", nargs="+", default=["qwen3"], choices=tuple(MODELS))
    parser.add_argument("--features", nargs="+", default=["plain"], choices=tuple(FEATURES))
    parser.add_argument("--server", action="store_true", help="vllm serve, and a client")
    options = parser.parse_args()
    is_vllm = str(options.checkout) == "vllm"
    if not is_vllm and not (options.checkout / "nanovllm").is_dir():
        parser.error(f"{options.checkout} has no nanovllm: give a checkout of nano-vllm, or vllm")
    draw = random.Random(0)
    prompts = [[draw.randrange(3, WORDS) for _ in range(length)] for length in LENGTHS]
    failed = 0
    for model in options.model:
        with tempfile.TemporaryDirectory(prefix="kernbench-serving-") as name:
            folder = Path(name)
            expected = make_model(folder / "model", model, prompts)
            client = SERVER if options.server else VLLM if is_vllm else CLIENT
            (folder / "client.py").write_text(client)
            (folder / "prompts.json").write_text(json.dumps(prompts))
            for ranks, feature in itertools.product(options.tensor_parallel, options.features):
                variables = VARIABLES if options.server else ONE_PROCESS
                more = FEATURES[feature] if client == VLLM else None
                result = serve(options.checkout, folder, options.machine, ranks, variables, more)
                same = [a == b for a, b in zip(result, expected, strict=True)] if result else []
                failed += not same or not all(same)
                print(
                    f"{model}, TP {ranks}, {feature}: {sum(same)} of {len(expected)} requests as "
                    "the reference's tokens"
                )
    return failed


def make_model(path: Path, model: str, prompts: list[list[int]]) -> list[list[int]]:
    """Write a model with random weights and a tokenizer; return the tokens that it continues by."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(WORDS)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="t1", unk_token="t0"
    )
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    name, more = MODELS[model]
    config = getattr(transformers, f"{name}Config")(**OF_ALL, **more)
    kind = getattr(transformers, f"{name}ForCausalLM")
    kind(config).to(torch.float16).save_pretrained(path)
    reference = kind.from_pretrained(path, dtype=torch.float32)
    return [continued(reference, prompt) for prompt in prompts]


def continued(model: Any, prompt: list[int]) -> list[int]:
    """Return the most likely tokens after a prompt."""
    import torch

    asked = torch.tensor([prompt])
    with torch.no_grad():
        generate = model.generate(
            asked,
            attention_mask=torch.ones_like(asked),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
        )
    tokens: list[int] = generate[0, len(prompt) :].tolist()
    return tokens


def serve(
    checkout: Path,
    folder: Path,
    machine: str,
    ranks: int,
    variables: dict[str, str],
    more: dict[str, Any] | None,
) -> list[list[int]]:
    """Return the tokens of all requests; empty where the program ended with an error."""
    command = [sys.executable, "-m", "kernbench", "torchrun", "--machine", machine]
    started = 2 if more is not None and _BY_TORCHRUN.items() <= more.items() else 1
    command += ["--nproc-per-node", str(started), "client.py", "model", str(ranks)]
    paths = [str(checkout.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [*command, "prompts.json", "found.json", *([] if more is None else [json.dumps(more)])],
        cwd=folder,
        env=os.environ | variables | {"PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    if done.returncode:
        return []
    numbers: list[list[int]] = json.loads((folder / "found.json").read_text())
    return numbers


if __name__ == "__main__":
    sys.exit(main())
