"""A bench whose kernel has a long name."""

import triton
import triton.language as tl


@triton.jit
def a_kernel_of_which_the_name_says_everything_there_is_to_say(x):
    tl.store(x + tl.arange(0, 16), 1.0)


def run(torch):
    a_kernel_of_which_the_name_says_everything_there_is_to_say[(1,)](torch.empty(16, device="ahbm"))
