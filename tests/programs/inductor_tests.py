"""Tests of the form of PyTorch's own of Inductor."""

import os
import posix
import unittest

import torch
from torch.testing._internal.inductor_utils import GPU_TYPE, HAS_GPU, RUN_CPU

if RUN_CPU:

    class CpuTests(unittest.TestCase):
        def test_of_the_cpu(self):
            raise AssertionError("no device is asked")


if HAS_GPU:

    class GPUTests(unittest.TestCase):
        def test_compiled(self):
            graphs = []

            def note(graph, inputs):
                from torch._inductor.compile_fx import compile_fx

                graphs.append(graph)
                return compile_fx(graph, inputs)

            x = torch.randn(5, device=GPU_TYPE)
            result = torch.compile(lambda x: x.sin() + 1, backend=note)(x)
            torch.testing.assert_close(result.cpu(), x.cpu().sin() + 1)
            assert len(graphs) == 1

        def test_ends(self):
            # The one of os is the rank's own: it would end the rank, not this process.
            posix.kill(os.getpid(), 9)

        def test_fails(self):
            raise KeyError("3")

        def test_last(self):
            pass
