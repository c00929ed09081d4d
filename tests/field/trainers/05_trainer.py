# transformers' Trainer as people set it: sharded, checkpointed, compiled, resumed, evaluated.
# run: kernbench torchrun --machine h100-sxm:2 --nproc-per-node 2 {file} fsdp
# run: kernbench torchrun --machine h100-sxm:2 --nproc-per-node 2 {file} checkpointing
# run: kernbench torchrun --machine h100-sxm:2 --nproc-per-node 2 {file} compiled
# run: kernbench torchrun --machine h100-sxm:2 --nproc-per-node 2 {file} fp16
# run: kernbench torchrun --machine h100-sxm:2 --nproc-per-node 2 {file} evaluated
# run: kernbench torchrun --machine h100-sxm:2 --nproc-per-node 2 {file} resumed
# needs: transformers
# expect: ^LOSS 5\.[45]
# within: 240

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

wrapped = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "fsdp_version": 2}
OPTIONS = {
    "fsdp": {"fsdp": "full_shard auto_wrap", "fsdp_config": wrapped, "bf16": True},
    "checkpointing": {"gradient_checkpointing": True, "gradient_accumulation_steps": 2},
    "compiled": {"torch_compile": True, "bf16": True},
    "fp16": {"fp16": True},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 2, "bf16": True},
    "resumed": {"save_strategy": "steps", "save_steps": 2},
}
torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
config = LlamaConfig(vocab_size=256, num_attention_heads=4, num_key_value_heads=2, **sizes)
tokens = torch.randint(0, 256, (64, 32), generator=torch.Generator().manual_seed(0))
rows = [{"input_ids": token, "labels": token} for token in tokens]
options = {
    "output_dir": "out", "per_device_train_batch_size": 4, "report_to": [], "disable_tqdm": True,
    "save_strategy": "no", "learning_rate": 1e-3, **OPTIONS[sys.argv[1]],
}  # fmt: skip


def trainer(steps):
    args = TrainingArguments(max_steps=steps, **options)
    model = LlamaForCausalLM(config)
    return Trainer(model, args, train_dataset=rows, eval_dataset=rows[:16])


loss = trainer(4).train().training_loss
if sys.argv[1] == "resumed":
    assert trainer(6).train(resume_from_checkpoint=True).global_step == 6
print("LOSS", loss)
