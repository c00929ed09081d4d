# hydra.main on two ranks, as pytorch/examples' minGPT-ddp has it.
# run: kernbench torchrun --nproc-per-node 2 {file}
# needs: hydra
# expect: rank 0 of 2: 3
# expect: rank 1 of 2: 3

import hydra
import torch
import torch.distributed as dist
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path=None)
def main(cfg: DictConfig):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    x = torch.tensor(dist.get_rank() + 1)
    x = x.cuda() if torch.cuda.is_available() else x
    dist.all_reduce(x)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x.item()}")
    dist.destroy_process_group()


main()
