# Supervised fine-tuning and GRPO of trl, in bfloat16.
# run: kernbench torchrun --machine h100-sxm:2 --nproc-per-node 2 {file} sft
# run: kernbench torchrun --no-data --machine h100-sxm:2 --nproc-per-node 2 {file} sft
# run: kernbench torchrun --machine h100-sxm:2 --nproc-per-node 2 {file} grpo
# needs: trl
# expect: ^LOSS -?\d

import sys

import datasets
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

torch.manual_seed(0)
words = [f"w{number}" for number in range(100)] + ["<pad>", "<eos>", "<unk>"]
level = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
level.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=level, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
ends = {"pad_token_id": 100, "eos_token_id": 101}
model = LlamaForCausalLM(LlamaConfig(vocab_size=103, num_attention_heads=4, **sizes, **ends))
options = {
    "output_dir": "out", "max_steps": 2, "per_device_train_batch_size": 4, "report_to": [],
    "logging_steps": 1, "save_strategy": "no", "bf16": True, "disable_tqdm": True,
}  # fmt: skip
if sys.argv[1] == "sft":
    texts = [" ".join(f"w{i * j % 100}" for j in range(12)) for i in range(64)]
    data = datasets.Dataset.from_dict({"text": texts})
    args = SFTConfig(max_length=32, **options)
    trainer = SFTTrainer(model, args, train_dataset=data, processing_class=tokenizer)
else:
    data = datasets.Dataset.from_dict({"prompt": [f"w{i} w{i + 1}" for i in range(32)]})
    args = GRPOConfig(num_generations=4, max_completion_length=8, **options)
    rewards = lambda completions, **rest: [float(len(completion)) for completion in completions]  # noqa: E731
    trainer = GRPOTrainer(model, rewards, args, train_dataset=data, processing_class=tokenizer)
print("LOSS", trainer.train().training_loss)
