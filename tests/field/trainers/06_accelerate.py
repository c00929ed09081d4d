# A loop of accelerate: accumulated gradients, a clipped norm, bfloat16.
# run: kernbench torchrun --machine h100-sxm:2 --nproc-per-node 2 {file}
# run: kernbench torchrun --no-data --machine h100-sxm:2 --nproc-per-node 2 {file}
# needs: accelerate
# needs: transformers
# expect: ^GATHERED \[0, 1, 1, 2\]

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, num_attention_heads=4, **sizes))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(torch.randint(0, 128, (32, 16)), batch_size=4)
schedule = get_cosine_schedule_with_warmup(optimizer, 1, 8)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
numbers = torch.arange(2, device=accelerator.device) + accelerator.process_index
accelerator.print("GATHERED", accelerator.gather_for_metrics(numbers).tolist())
