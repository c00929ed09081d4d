"""Forward of a Llama of Hugging Face, with gradients recorded, as accelerate's benchmark does.

arguments: layers, hidden, heads, key-value heads, feed-forward, vocabulary, batch, sequence; for a
compiled one, "full", or "regional": each layer by itself.

Source: huggingface/accelerate, benchmarks/torch.compile/regional_compilation.py.
"""

import sys

import torch

from validation.programs.loops.timing import say, seconds_of


def main() -> None:
    """Time forwards."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    layers, hidden, heads, kv_heads, ffn, vocab, batch, length = map(int, sys.argv[1:9])
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=ffn,
        vocab_size=vocab,
        max_position_embeddings=131072,
    )
    with torch.device("cuda"):
        # Built in the dtype of the rows: a device of 24 GB has no room for 8B in float32.
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float16).eval()
    tokens = torch.randint(0, 1000, (batch, length), device="cuda")
    compiled = sys.argv[9] if len(sys.argv) > 9 else ""
    if compiled == "full":
        model = torch.compile(model)
    elif compiled == "regional":
        for layer in model.model.layers:
            layer.compile()
    model(tokens, use_cache=False)
    say(seconds_of(lambda: model(tokens, use_cache=False), 3))


if __name__ == "__main__":
    main()
