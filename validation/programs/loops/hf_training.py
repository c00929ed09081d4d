"""Forward and backward of a model of Hugging Face as PyTorch's benchmarks/dynamo run it.

arguments: class of the model, batch, amp or float32; then the length of sequences where it is not
the usual one, and for a compiled one the mode of ``torch.compile``, or the backend aot_eager.

Source: pytorch/pytorch, benchmarks/dynamo/huggingface.py: the class's own config, a length of
sequences by the model's name, train mode, losses of the model; benchmarks/dynamo/common.py: TF32,
inputs that each step copies, a wait after each step, losses that are scaled under autocast.
"""

import sys
from contextlib import nullcontext
from typing import Any

import torch

from validation.programs.loops.timing import say, seconds_of

# Lengths of sequences, by how a model's name starts, and of all others.
LENGTHS = {
    1024: ("GPT2", "Bart", "T5", "PLBart", "MBart", "AllenaiLongformer", "BigBird"),
    2048: ("OPT",),
    4096: ("Reformer",),
    512: (
        *("Albert", "Deberta", "Layout", "Electra", "XLNet", "MegatronBert", "Bert", "Roberta"),
        *("DistillGPT2", "GoogleFnet", "YituTechConvBert", "CamemBert"),
    ),
    256: ("TrOCR",),
}
OTHERS = 128
# Checkpoints that the benchmark names by names of its own: their classes, and what their configs
# have that their class's own has not.
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "AllenaiLongformerBase": ("LongformerForMaskedLM", {"max_position_embeddings": 4098}),
    "CamemBert": ("CamembertForMaskedLM", {"vocab_size": 32005, "max_position_embeddings": 514}),
    "DistillGPT2": ("GPT2LMHeadModel", {"n_layer": 6}),
    "GoogleFnet": ("FNetForMaskedLM", {}),
    "Reformer": ("ReformerForMaskedLM", {"is_decoder": False}),
    "T5Small": ("T5ForConditionalGeneration", {}),
    "YituTechConvBert": ("ConvBertForMaskedLM", {}),
}
MASKED = ("Albert", "Bert", "DistilBert", "Electra", "MegatronBert", "Roberta")


def length_of(name: str) -> int:
    """Return the length of the sequences that a model is given."""
    return next((each for each, known in LENGTHS.items() if name.startswith(known)), OTHERS)


def config_of(model: Any) -> Any:
    """Return the config of a class, sized as the checkpoint that the benchmark takes."""
    name = model.__name__
    config = model.config_class()
    known: dict[str, dict[str, Any]] = {
        "MegatronBert": {},
        "Albert": {
            "hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384,
            "num_hidden_layers": 12,
        },
        "DebertaV2": {
            "hidden_size": 1536, "num_attention_heads": 24, "num_hidden_layers": 24,
            "intermediate_size": 6144, "relative_attention": True, "position_buckets": 256,
            "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False, "max_relative_positions": -1,
        },
    }  # fmt: skip
    for start, changes in known.items():
        if name.startswith(start):
            for key, value in changes.items():
                setattr(config, key, value)
    config.use_cache = False
    if "ForSequenceClassification" in name:
        config.pad_token_id = 0
    return config


def inputs_of(model: Any, config: Any, batch: int, length: int) -> dict[str, Any]:
    """Return tokens and labels, as the benchmark makes them."""
    vocab = config.vocab_size
    name = type(model).__name__

    def tokens() -> torch.Tensor:
        return torch.randint(0, vocab, (batch, length), device="cuda")

    given = {"input_ids": tokens()}
    if config.is_encoder_decoder:
        given["decoder_input_ids"] = tokens()
    if "QuestionAnswering" in name:
        for each in ("start_positions", "end_positions"):
            given[each] = torch.randint(0, length, (batch,), device="cuda")
    elif "SequenceClassification" in name:
        given["labels"] = torch.randint(0, config.num_labels, (batch,), device="cuda")
    else:
        given["labels"] = tokens()
    if name.startswith(MASKED):
        # The library of the time added a mask to all scores, of tokens without padding too.
        given["attention_mask"] = torch.zeros(batch, 1, 1, length, device="cuda")
    if name.startswith("LayoutLM"):
        given["bbox"] = torch.zeros(batch, length, 4, dtype=torch.int64, device="cuda")
    return given


def main() -> None:
    """Time steps."""
    import transformers

    name, batch, precision = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    class_name, changes = CHECKPOINTS.get(name, (name, {}))
    kind = getattr(transformers, class_name, None)
    if kind is None:
        raise SystemExit(f"transformers {transformers.__version__} has no {name}")
    torch.backends.cuda.matmul.allow_tf32 = True
    config = config_of(kind)
    for key, value in changes.items():
        setattr(config, key, value)
    with torch.device("cuda"):
        model = kind._from_config(config, attn_implementation="eager").to("cuda").train()
    more = sys.argv[4:]
    how = next((each for each in more if not each.isdigit()), "")
    length = next((int(each) for each in more if each.isdigit()), length_of(name))
    given = inputs_of(model, config, batch, length)

    scaler = torch.amp.GradScaler("cuda", init_scale=2.0) if precision == "amp" else None

    def step() -> None:
        inputs = {key: each.clone() for key, each in given.items()}
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16) if precision == "amp" else nullcontext():
            loss = run(**inputs)[0]
        (loss if scaler is None else scaler.scale(loss)).backward()

    run = model
    if how == "aot_eager":
        run = torch.compile(model, backend=how)
    elif how:
        run = torch.compile(model, mode=how)
    step()
    # Graphs are captured in the second call.
    if how == "reduce-overhead":
        step()
    say(seconds_of(step, 2, waits=True))


if __name__ == "__main__":
    main()
