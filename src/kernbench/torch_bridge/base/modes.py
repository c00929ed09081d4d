"""What the bridge's dispatch modes share."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):
    """A dispatch mode that PyTorch's compiler never looks at."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Looking for the compiler would take longer than the operation.
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # What a program compiles is compiled below its observer, too.
        return True
