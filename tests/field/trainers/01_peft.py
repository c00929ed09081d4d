# Adapters of PEFT, trained by transformers' Trainer on two ranks: losses of the host.
# run: kernbench torchrun --machine h100-sxm:2 --nproc-per-node 2 {file}
# run: kernbench torchrun --no-data --machine h100-sxm:2 --nproc-per-node 2 {file}
# needs: peft
# needs: transformers
# expect: ^RANK 0 trains
# expect: ^RANK 1 trains

import copy

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
config = LlamaConfig(vocab_size=256, num_attention_heads=4, num_key_value_heads=2, **sizes)
adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
model = get_peft_model(LlamaForCausalLM(config), adapters)
tokens = torch.randint(0, 256, (32, 16), generator=torch.Generator().manual_seed(0))
rows = [{"input_ids": token, "labels": token} for token in tokens]
args = TrainingArguments(
    "out", per_device_train_batch_size=4, max_steps=3, report_to=[], save_strategy="no",
    disable_tqdm=True, learning_rate=1e-2, lr_scheduler_type="constant", max_grad_norm=0.0,
    logging_steps=1,
)  # fmt: skip


class Ordered(Trainer):
    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(dataset or rows)


plain = copy.deepcopy(model)
loss = Ordered(model=model, args=args, train_dataset=rows).train().training_loss
adam = torch.optim.AdamW(
    [p for p in plain.parameters() if p.requires_grad], lr=1e-2, weight_decay=0
)
losses = []
for step in range(3):
    # Four rows of each rank.
    batch = tokens[8 * step : 8 * step + 8]
    out = plain(input_ids=batch, labels=batch)
    adam.zero_grad()
    out.loss.backward()
    adam.step()
    losses.append(out.loss.item())
has_data = model.base_model.model.lm_head.weight.sum().item() != 0
assert not has_data or abs(loss - sum(losses) / 3) < 2e-3, (loss, losses)
print("RANK", dist.get_rank(), "trains", loss, losses)
