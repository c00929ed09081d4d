# A small UNet of diffusers and its scheduler: pictures of the host.
# run: kernbench torchrun --machine h100-sxm:1 --nproc-per-node 1 {file}
# needs: diffusers
# expect: ^as on the host
# never: failed to import

import torch
from diffusers import DDPMScheduler, UNet2DConditionModel

torch.manual_seed(0)
model = UNet2DConditionModel(
    sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64),
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), cross_attention_dim=32,
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=8,
).eval()  # fmt: skip
steps = DDPMScheduler()
steps.set_timesteps(3)
noise, words = torch.randn(1, 4, 16, 16), torch.randn(1, 7, 32)


@torch.no_grad()
def pictures(device):
    there, sample = model.to(device), noise.to(device)
    for time in steps.timesteps:
        value = {"encoder_hidden_states": words.to(device)}
        # Without the scheduler's own noise, and its limit on what a picture is.
        sample = sample - 0.1 * there(sample, time, **value).sample
    return sample.cpu()


torch.testing.assert_close(pictures("cuda"), pictures("cpu"), rtol=1e-4, atol=1e-4)
print("as on the host")
