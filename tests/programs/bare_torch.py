"""As much of PyTorch as is changed when a program imports it: what a test puts in its place."""


class overrides:
    class TorchFunctionMode:
        def __enter__(self):
            pass

        def __exit__(self, *error):
            pass


class Tensor:
    is_cuda = False


class cuda:
    pass


class cpu:
    pass


class device:
    pass


class nn:
    class functional:
        layer_norm = None
