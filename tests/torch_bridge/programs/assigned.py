"""Kinds of state of shared modules that a rank sets, each a generator: sets, yields, says what is.

python assigned.py FOLDER [KIND...]

Between the two halves all ranks have set theirs. What a kind returns is compared with real
processes, so that it says what it finds, whatever that is.
"""

import abc
import asyncio
import builtins
import calendar
import codecs
import collections.abc
import copy
import copyreg
import csv
import datetime
import decimal
import email.policy
import fractions
import functools
import gc
import http
import json
import locale
import logging
import logging.config
import math
import mimetypes
import multiprocessing.forkserver
import multiprocessing.spawn
import os
import pickle
import pkgutil
import pprint
import random
import reprlib
import shutil
import socket
import sqlite3
import string
import sys
import syslog
import tempfile
import textwrap
import threading
import time
import types
import typing
import unittest.mock
import urllib.parse
import urllib.request
import uuid
import warnings
import webbrowser
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch.utils._pytree as pytree
import torch.utils.checkpoint
import torch.utils.data
import torch.utils.hooks
from torch import nn
from torch._dynamo import register_backend
from torch._dynamo.backends import registry
from torch.distributions import Normal, constraints, kl
from torch.distributions.constraint_registry import biject_to
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import IterDataPipe, MapDataPipe, functional_datapipe
from torch.utils.data._utils import collate

sys.path.insert(0, str(Path(__file__).parent))

import own_state

KINDS: dict[str, Any] = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


class Own:
    """One of the program's classes."""


# Attributes of modules.


@kind
def a_wrapped_collective(rank):
    plain = dist.all_reduce

    def averaged(tensor, *args, **kwargs):
        plain(tensor, *args, **kwargs)
        tensor.div_(dist.get_world_size())

    dist.all_reduce = averaged
    yield
    assert dist.all_reduce is averaged
    dist.all_reduce = plain
    return [averaged.__closure__[0].cell_contents.__module__]


@kind
def a_function_of_nn(rank):
    plain = F.gelu
    F.gelu = lambda x: plain(x) * (rank + 1)
    yield
    return F.gelu(torch.ones(1)).item()


@kind
def what_others_hold_of_it(rank):
    plain = F.softplus
    F.softplus = lambda x, *rest: torch.full((), float(rank))
    yield
    return [plain(torch.zeros(1)).item(), nn.Softplus()(torch.zeros(1)).item()]


@kind
def an_initialization(rank):
    nn.init.normal_ = lambda tensor, *rest: nn.init.constant_(tensor, rank + 1)
    yield
    return nn.Embedding(2, 2).weight.sum().item()


@kind
def a_new_attribute_of_torch(rank):
    torch.kb_of_rank = rank
    yield
    torch.kb_of_rank += 10
    return torch.kb_of_rank


@kind
def an_attribute_of_one_rank(rank):
    if rank == 0:
        torch.kb_only_here = True
    yield
    return hasattr(torch, "kb_only_here")


@kind
def a_deleted_attribute(rank):
    if rank == 0:
        del calendar.EPOCH
    yield
    return hasattr(calendar, "EPOCH")


@kind
def deleted_and_set_again(rank):
    before = textwrap.dedent
    del textwrap.dedent
    if rank == 1:
        textwrap.dedent = before
    yield
    return hasattr(textwrap, "dedent")


@kind
def a_builtin(rank):
    seen, plain = [], builtins.print
    builtins.print = lambda *args, **kwargs: seen.append(rank)
    yield
    print("to nobody")
    builtins.print = plain
    return seen


@kind
def a_new_builtin(rank):
    builtins.kb_say = lambda: f"rank {rank}"
    yield
    return kb_say()  # noqa: F821


@kind
def the_clock(rank):
    plain = time.perf_counter
    time.perf_counter = lambda: -1.0 - rank
    yield
    now = time.perf_counter()
    time.perf_counter = plain
    return now


@kind
def a_function_of_c(rank):
    math.sqrt, plain = (lambda x: x + rank), math.sqrt
    yield
    return [math.sqrt(4), plain(4)]


@kind
def a_function_of_torch_in_c(rank):
    plain = torch.sigmoid
    torch.sigmoid = lambda x: plain(x).sub(rank)
    yield
    return [torch.sigmoid(torch.zeros(1)).item(), torch.zeros(1).sigmoid().item()]


@kind
def a_function_of_numpy(rank):
    np.zeros = lambda *args, **kwargs: np.full(args[0], rank + 5)
    yield
    return int(np.zeros(2).sum())


@kind
def an_alias_for_old_programs(rank):
    np.float_of_old = float if rank == 0 else np.float32
    yield
    return np.float_of_old.__name__


@kind
def a_dictionary_of_a_module(rank):
    vars(string)["kb_digits"] = string.digits[: rank + 1]
    yield
    return string.kb_digits


@kind
def settings_by_setattr(rank):
    setattr(pprint, "kb_width", rank)  # noqa: B010
    yield
    return getattr(pprint, "kb_width")  # noqa: B009


@kind
def a_submodule_in_its_place(rank):
    fake = types.ModuleType("kb_fake")
    fake.who = rank
    torch.kb_fake = fake
    yield
    return torch.kb_fake.who


@kind
def sys_hooks(rank):
    sys.displayhook = functools.partial(max, rank)
    yield
    hooks = sys.displayhook.args[0]
    sys.displayhook = sys.__displayhook__
    return hooks


@kind
def patched_by_mock(rank):
    with unittest.mock.patch("shutil.which", lambda name: f"{name} of {rank}"):
        yield
        return shutil.which("sh")


@kind
def patched_for_a_while(rank):
    patcher = unittest.mock.patch.object(nn.ReLU, "forward", lambda self, x: x.sub(rank))
    patcher.start()
    yield
    inside = nn.ReLU()(torch.ones(1)).item()
    patcher.stop()
    return [inside, nn.ReLU()(torch.full((1,), -1.0)).item()]


@kind
def all_that_mock_patches(rank):
    unittest.mock.patch.object(os.path, "islink", return_value=rank).start()
    yield
    if rank == 0:
        unittest.mock.patch.stopall()
    return os.path.islink("/")  # noqa: PTH114


# Attributes of classes.


@kind
def a_method(rank):
    plain = nn.Linear.forward
    nn.Linear.forward = lambda self, x: plain(self, x).mul(0).sub(rank)
    yield
    return nn.Linear(2, 1)(torch.ones(1, 2)).item()


@kind
def a_method_in_place_of_an_inherited_one(rank):
    nn.Sequential.extra_repr = lambda self: f"of rank {rank}"
    yield
    return repr(nn.Sequential())


@kind
def a_constant_of_a_class(rank):
    nn.BatchNorm1d.kb_limit = rank
    yield
    return nn.BatchNorm1d.kb_limit


@kind
def a_property_of_tensors(rank):
    torch.Tensor.kb_rank = property(lambda self: self.sum().item() + rank)
    yield
    return torch.ones(2).kb_rank


@kind
def a_method_of_tensors(rank):
    plain = torch.Tensor.__add__
    torch.Tensor.__add__ = lambda self, other: plain(self, other).sub(rank)
    yield
    a_method = (torch.ones(1) + 1).item()
    torch.Tensor.__add__ = plain
    return a_method


@kind
def a_method_of_optimizers(rank):
    plain = torch.optim.SGD.step
    torch.optim.SGD.step = lambda self, closure=None: [plain(self, closure), rank][1]
    yield
    parameter = nn.Parameter(torch.ones(1))
    return torch.optim.SGD([parameter], lr=0.1).step()


@kind
def a_static_method(rank):
    Normal.kb_make = staticmethod(lambda: rank)
    yield
    return Normal.kb_make()


@kind
def an_encoder_of_json(rank):
    json.JSONEncoder.default = lambda self, value: f"{type(value).__name__} of {rank}"
    yield
    return json.dumps([Own()])


@kind
def an_enumeration(rank):
    uuid.SafeUUID.kb_alias = rank
    yield
    return uuid.SafeUUID.kb_alias


@kind
def a_function_of_autograd(rank):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * (rank + 2)

        @staticmethod
        def backward(ctx, grad):
            return grad * (rank + 2)

    F.kb_doubled = Doubled.apply
    yield
    x = torch.ones(1, requires_grad=True)
    F.kb_doubled(x).backward()
    return x.grad.item()


@kind
def in_a_backward_pass(rank):
    seen, plain = [], torch.Tensor.kb_note if hasattr(torch.Tensor, "kb_note") else None
    torch.Tensor.kb_note = lambda self: seen.append(rank)
    yield
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda grad: grad.kb_note())
    (x * 2).backward()
    return [seen, plain is None]


@kind
def in_a_thread(rank):
    import threading

    F.kb_in_thread = lambda: rank
    yield
    seen = []
    thread = threading.Thread(target=lambda: seen.append(F.kb_in_thread()))
    thread.start()
    thread.join()
    return seen


@kind
def an_abstract_class(rank):
    if rank == 0:
        collections.abc.Sized.register(Own)
        collections.abc.Awaitable.register(torch.Size)
    yield
    own = isinstance(Own(), collections.abc.Sized)
    return [own, issubclass(torch.Size, collections.abc.Awaitable)]


class Shape(abc.ABC):  # noqa: B024 - what it has is registered
    """An abstract class of the program."""


@kind
def an_abstract_class_of_its_own(rank):
    if rank == 0:
        Shape.register(torch.Size)
    yield
    return issubclass(torch.Size, Shape)


# What is registered by name, type or function.


@kind
def an_iterable_data_pipe(rank):
    @functional_datapipe("kb_batches")
    class Batches(IterDataPipe):
        def __init__(self, source):
            self.source = source

        def __iter__(self):
            yield rank

    yield
    return list(torch.utils.data.datapipes.iter.IterableWrapper([5]).kb_batches())


@kind
def a_map_data_pipe(rank):
    @functional_datapipe("kb_mapped")
    class Mapped(MapDataPipe):
        def __init__(self, source):
            self.source = source

        def __len__(self):
            return rank + 1

    yield
    return len(torch.utils.data.datapipes.map.SequenceWrapper([5]).kb_mapped())


@kind
def a_compiler(rank):
    @register_backend(name="kb_backend")
    def backend(graph, example_inputs):
        return graph.forward

    yield
    return registry.lookup_backend("kb_backend") is backend


@kind
def optimizer_hooks(rank):
    seen = []
    hook = register_optimizer_step_post_hook(lambda *args: seen.append(rank))
    yield
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    torch.optim.AdamW([parameter], lr=0.1).step()
    hook.remove()
    torch.optim.AdamW([parameter], lr=0.1).step()
    return seen


@kind
def hooks_of_all_modules(rank):
    seen = []
    hook = nn.modules.module.register_module_forward_hook(lambda *args: seen.append(rank))
    nn.modules.module.register_module_parameter_registration_hook(lambda *args: seen.append("p"))
    yield
    nn.Identity()(torch.ones(1))
    nn.Linear(1, 1)
    hook.remove()
    nn.modules.module._global_parameter_registration_hooks.clear()
    nn.Identity()(torch.ones(1))
    return seen


@kind
def a_tree(rank):
    class Pair:
        def __init__(self, values):
            self.values = values

    name = "kb.Pair"
    pytree.register_pytree_node(
        Pair,
        lambda pair: (pair.values, rank),
        lambda values, context: Pair(values),
        serialized_type_name=name,
    )
    yield
    return str(pytree.tree_flatten(Pair([1, 2]))[1]).count(str(rank)) > 0


@kind
def a_tree_of_a_shared_class(rank):
    pytree.register_pytree_node(decimal.Context, lambda c: ([rank], None), lambda v, c: v)
    yield
    return pytree.tree_leaves(decimal.Context())


@kind
def safe_globals(rank):
    if rank == 0:
        torch.serialization.add_safe_globals([Own, decimal.Context])
    yield
    return len(torch.serialization.get_safe_globals())


@kind
def a_package_of_serialization(rank):
    count = len(torch.serialization._package_registry)
    torch.serialization.register_package(rank, lambda storage: None, lambda storage, where: None)
    yield
    return len(torch.serialization._package_registry) - count


@kind
def a_distance_of_distributions(rank):
    @kl.register_kl(Normal, Normal)
    def mine(p, q):
        return torch.full((), float(rank))

    yield
    return kl.kl_divergence(Normal(0, 1), Normal(1, 2)).item()


@kind
def a_constraint(rank):
    biject_to.register(constraints.simplex, lambda constraint: rank)
    yield
    return biject_to(constraints.simplex)


@kind
def a_backend_of_groups(rank):
    dist.Backend.register_backend("kb_mine", lambda *args: None, devices=["cpu"])
    yield
    return [hasattr(dist.Backend, "KB_MINE"), "kb_mine" in dist.Backend.backend_list]


@kind
def how_things_are_copied(rank):
    as_number: Any = lambda value: (int, (rank + 40,))  # noqa: E731 - mypy knows what it replaces
    copyreg.pickle(types.SimpleNamespace, as_number)
    yield
    return [pickle.loads(pickle.dumps(types.SimpleNamespace())), copy.copy(types.SimpleNamespace())]


@kind
def a_function_by_type(rank):
    json_of.register(int, lambda value: f"int of {rank}")
    shared_dispatch = functools.singledispatch(lambda value: "any")
    textwrap.kb_dispatch = shared_dispatch
    textwrap.kb_dispatch.register(int, lambda value: rank)
    pkgutil.iter_importer_modules.register(int, lambda *args: [("of", rank)])
    yield
    return [json_of(3), textwrap.kb_dispatch(3), list(pkgutil.iter_importer_modules(3))]


@functools.singledispatch
def json_of(value):
    return "any"


@kind
def a_codec(rank):
    def search(name):
        if name != "kb_codec":
            return None
        return codecs.CodecInfo(
            lambda text: (bytes([rank]), 1), lambda data: (str(rank), 1), name=name
        )

    codecs.register(search)
    yield
    return ["x".encode("kb_codec")[0], b"x".decode("kb_codec")]


@kind
def handling_of_what_cannot_be_encoded(rank):
    codecs.register_error("kb_errors", lambda error: (f"<{rank}>", error.end))
    yield
    return "\u20ac".encode("ascii", "kb_errors").decode()


@kind
def a_dialect_of_csv(rank):
    csv.register_dialect("kb_dialect", delimiter=";" if rank else "|")
    yield
    return next(csv.reader(["a;b|c"], "kb_dialect"))


@kind
def a_media_type(rank):
    mimetypes.add_type(f"kb/rank{rank}", ".kb")
    yield
    return mimetypes.guess_type("x.kb")[0]


@kind
def an_archive(rank):
    shutil.register_archive_format("kb_archive", lambda *args, **kwargs: str(rank), (), "mine")
    yield
    return [item[0] for item in shutil.get_archive_formats()].count("kb_archive")


@kind
def a_scheme_of_addresses(rank):
    urllib.parse.uses_netloc.append(f"kb{rank}")
    yield
    return [urllib.parse.urljoin(f"kb{index}://host/a", "//other/b") for index in range(2)]


@kind
def an_opener(rank):
    urllib.request.install_opener(urllib.request.OpenerDirector())
    urllib.request._opener.who = rank
    yield
    return urllib.request._opener.who


@kind
def a_name_of_a_level(rank):
    logging.addLevelName(35, f"LEVEL{rank}")
    yield
    return logging.getLevelName(35)


@kind
def a_class_of_loggers(rank):
    class Mine(logging.Logger):
        who = rank

    if rank == 0:
        logging.setLoggerClass(Mine)
    yield
    a_class = logging.getLoggerClass().__name__
    logging.setLoggerClass(logging.Logger)
    return a_class


@kind
def a_factory_of_records(rank):
    plain = logging.getLogRecordFactory()

    def make(*args, **kwargs):
        record = plain(*args, **kwargs)
        record.rank = rank
        return record

    logging.setLogRecordFactory(make)
    yield
    a_factory = logging.getLogger("kb").makeRecord("kb", 20, "x", 1, "y", (), None).rank
    logging.setLogRecordFactory(plain)
    return a_factory


@kind
def levels_of_loggers(rank):
    logging.getLogger("kb.levels").setLevel(10 * (rank + 1))
    yield
    return logging.getLogger("kb.levels").level


@kind
def filters_of_warnings(rank):
    if rank == 0:
        warnings.filterwarnings("error", category=ImportWarning)
    yield
    return sum(item[0] == "error" and item[2] is ImportWarning for item in warnings.filters)


@kind
def how_warnings_are_shown(rank):
    seen, plain = [], warnings.showwarning
    warnings.showwarning = lambda *args, **kwargs: seen.append(rank)
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("to nobody", stacklevel=1)
    warnings.showwarning = plain
    return seen


# Settings.


@kind
def the_folder_of_the_hub(rank):
    torch.hub.set_dir(f"/kb/hub{rank}")
    yield
    return torch.hub.get_dir()


@kind
def the_folder_of_temporary_files(rank):
    tempfile.tempdir = f"/kb/tmp{rank}"
    yield
    the_folder = tempfile.gettempdir()
    tempfile.tempdir = None
    return the_folder


@kind
def sharing_of_tensors(rank):
    if rank == 0:
        torch.multiprocessing.set_sharing_strategy("file_system")
    yield
    return torch.multiprocessing.get_sharing_strategy()


@kind
def early_stops_of_checkpoints(rank):
    with torch.utils.checkpoint.set_checkpoint_early_stop(rank == 0):
        yield
        inside = torch.utils.checkpoint._enable_checkpoint_early_stop
    return [inside, torch.utils.checkpoint._enable_checkpoint_early_stop]


@kind
def how_parameters_are_converted(rank):
    torch.__future__.set_overwrite_module_params_on_conversion(rank == 1)
    yield
    tensor = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(False)
    return tensor


@kind
def printing_of_tensors(rank):
    torch.set_printoptions(precision=rank + 1)
    yield
    return repr(torch.tensor([1.23456]))


@kind
def printing_of_arrays(rank):
    np.set_printoptions(precision=rank + 1)
    yield
    return repr(np.array([1.23456]))


@kind
def errors_of_arrays(rank):
    np.seterr(divide="raise" if rank else "ignore")
    yield
    return np.geterr()["divide"]


@kind
def the_default_dtype(rank):
    torch.set_default_dtype(torch.float64 if rank else torch.float32)
    yield
    dtype = str(torch.ones(1).dtype)
    torch.set_default_dtype(torch.float32)
    return dtype


@kind
def precision_of_decimals(rank):
    decimal.getcontext().prec = rank + 3
    yield
    return str(decimal.Decimal(1) / 3)


@kind
def settings_of_the_compiler(rank):
    torch._dynamo.config.cache_size_limit = rank + 20
    yield
    return torch._dynamo.config.cache_size_limit


@kind
def timeouts_of_sockets(rank):
    socket.setdefaulttimeout(rank + 1.5)
    yield
    timeouts = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)
    return timeouts


@kind
def the_depth_of_recursion(rank):
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 100 * (rank + 1))
    yield
    the_depth = sys.getrecursionlimit() - before
    sys.setrecursionlimit(before)
    return the_depth


@kind
def limits_of_fields(rank):
    csv.field_size_limit(1000 + rank)
    yield
    return csv.field_size_limit()


@kind
def a_table_of_collation(rank):
    collate.default_collate_fn_map[complex] = lambda batch, **kwargs: rank
    yield
    return collate.default_collate([1j])


@kind
def a_module_in_place_of_another(rank):
    fake = types.ModuleType("colorsys")
    fake.who = rank
    sys.modules["colorsys"] = fake
    yield
    import colorsys

    return colorsys.who


@kind
def a_class_of_a_module(rank):
    class Asking(types.ModuleType):
        @property
        def kb_asked(self):
            return rank

    uuid.__class__ = Asking
    yield
    return uuid.kb_asked


@kind
def importing(rank):
    seen, plain = [], builtins.__import__

    def counted(*args, **kwargs):
        seen.append(rank)
        return plain(*args, **kwargs)

    builtins.__import__ = counted
    yield
    import string  # noqa: F401

    builtins.__import__ = plain
    return sorted(set(seen))


@kind
def an_object_of_a_module(rank):
    torch.ops.kb_attribute = rank
    yield
    return torch.ops.kb_attribute


@kind
def the_locale(rank):
    if rank == 0:
        locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")
    yield
    return locale.setlocale(locale.LC_NUMERIC)


@kind
def environment(rank):
    os.environ["KB_MINE"] = str(rank)
    yield
    return os.environ["KB_MINE"]


@kind
def random_numbers(rank):
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    yield
    return [random.random(), np.random.rand(), torch.rand(1).item()]


@kind
def modules_that_are_put_in_place(rank):
    fake = types.ModuleType("kb_not_installed")
    fake.who = rank
    sys.modules["kb_not_installed"] = fake
    yield
    import kb_not_installed

    return kb_not_installed.who


@kind
def an_attribute_of_a_function(rank):
    F.relu.kb_rank = rank
    yield
    return F.relu.kb_rank


@kind
def defaults_of_a_function(rank):
    F.dropout.__defaults__ = (rank / 10, *F.dropout.__defaults__[1:])
    yield
    return F.dropout.__defaults__[0]


@kind
def code_of_a_function(rank):
    if rank == 0:
        F.selu.__code__ = (lambda *of_any: 7).__code__
    yield
    return float(F.selu(torch.zeros(1)))


@kind
def an_attribute_of_a_method(rank):
    nn.Bilinear.forward.kb_rank = rank
    yield
    kb_rank = nn.Bilinear.forward.kb_rank
    del nn.Bilinear.forward.kb_rank
    return [kb_rank, hasattr(nn.Bilinear.forward, "kb_rank")]


@kind
def constants_of_a_layer(rank):
    nn.Linear.__constants__.append(f"kb{rank}")
    yield
    return [constant for constant in nn.Linear.__constants__ if constant.startswith("kb")]


@kind
def the_first_day_of_a_week(rank):
    calendar.setfirstweekday(rank + 2)
    yield
    return calendar.firstweekday()


@kind
def what_is_told_of_collections(rank):
    def told(phase, info): ...

    told.kb_rank = rank
    gc.callbacks.append(told)
    yield
    return [callback.kb_rank for callback in gc.callbacks if hasattr(callback, "kb_rank")]


@kind
def how_often_threads_switch(rank):
    sys.setswitchinterval(0.005 * (rank + 1))
    yield
    return round(sys.getswitchinterval(), 4)


@kind
def stacks_of_threads(rank):
    threading.stack_size((1 + rank) << 20)
    yield
    return threading.stack_size(0)


@kind
def a_mask_of_files(rank):
    os.umask(0o22 + rank)
    yield
    return os.umask(0o22)


@kind
def a_policy_of_event_loops(rank):
    class Policy(asyncio.DefaultEventLoopPolicy):
        kb_rank = rank

    asyncio.set_event_loop_policy(Policy())
    yield
    return asyncio.get_event_loop_policy().kb_rank


@kind
def finders_of_modules(rank):
    class Finder:
        kb_rank = rank

        @staticmethod
        def find_spec(name, path=None, target=None):
            return None

    sys.meta_path.append(Finder)
    yield
    return [item.kb_rank for item in sys.meta_path if hasattr(item, "kb_rank")]


@kind
def hooks_of_paths(rank):
    def hook(path):
        raise ImportError

    hook.kb_rank = rank
    sys.path_hooks.append(hook)
    yield
    return [path_hook.kb_rank for path_hook in sys.path_hooks if hasattr(path_hook, "kb_rank")]


@kind
def threads_of_operations(rank):
    torch.set_num_interop_threads(1 + rank)
    yield
    return torch.get_num_interop_threads()


# Attributes of objects that are no modules, classes or functions.


@kind
def an_encoder_that_is_there(rank):
    json._default_encoder.sort_keys = rank == 0
    yield
    an_encoder = json.dumps({"b": 0, "a": 0})
    json._default_encoder.sort_keys = False
    return an_encoder


@kind
def limits_of_representations(rank):
    reprlib.aRepr.maxlist = rank + 1
    yield
    return reprlib.repr([1, 2, 3])


@kind
def a_method_of_an_object(rank):
    reprlib.aRepr.repr_frozenset = lambda x, level: f"of rank {rank}"
    yield
    return reprlib.repr(frozenset((1,)))


@kind
def a_class_of_an_object(rank):
    class Mine(string.Formatter):
        kb_rank = rank

    logging._defaultFormatter.kb_formatter = string.Formatter()
    logging._defaultFormatter.kb_formatter.__class__ = Mine
    yield
    return logging._defaultFormatter.kb_formatter.kb_rank


@kind
def an_object_that_mock_patches(rank):
    with unittest.mock.patch("reprlib.aRepr.maxdict", rank + 1):
        yield
        inside = reprlib.aRepr.maxdict
    return [inside, reprlib.aRepr.maxdict]


@kind
def a_frozen_object(rank):
    object.__setattr__(email.policy.default, "kb_rank", rank)
    yield
    return email.policy.default.kb_rank


@kind
def a_dictionary_of_an_object(rank):
    vars(reprlib.aRepr)["maxother"] = rank + 5
    yield
    return reprlib.aRepr.maxother


@kind
def a_deleted_attribute_of_an_object(rank):
    if rank == 1:
        del reprlib.aRepr.maxlevel
    yield
    return hasattr(reprlib.aRepr, "maxlevel")


@kind
def a_level_by_a_method_of_the_object(rank):
    assert logging.lastResort is not None
    logging.lastResort.setLevel(10 * (rank + 1))
    yield
    assert logging.lastResort is not None
    return logging.lastResort.level


@kind
def an_attribute_of_a_logger(rank):
    logging.getLogger("kb.attributes").kb_rank = rank
    yield
    return logging.getLogger("kb.attributes").kb_rank


@kind
def an_attribute_of_a_constraint(rank):
    constraints.simplex.event_dim = rank + 3
    yield
    return constraints.simplex.event_dim


@kind
def a_member_of_an_enumeration(rank):
    http.HTTPStatus.NOT_FOUND.phrase = f"of rank {rank}"
    yield
    return http.HTTPStatus(404).phrase


@kind
def an_operation_of_torch(rank):
    torch.ops.aten.add.kb_rank = rank
    torch.ops.aten.add.Tensor.kb_rank = rank + 10
    yield
    return [torch.ops.aten.add.kb_rank, torch.ops.aten.add.Tensor.kb_rank]


@kind
def a_function_that_a_function_has_made(rank):
    F.max_pool2d.kb_rank = rank
    yield
    return F.max_pool2d.kb_rank


@kind
def a_context_of_decimals(rank):
    decimal.BasicContext.prec = rank + 4
    yield
    return decimal.BasicContext.prec


@kind
def a_state_of_the_scripts(rank):
    torch.jit._state._enabled.enabled = rank == 1
    yield
    a_state = torch.jit._state._enabled.enabled
    torch.jit._state._enabled.enabled = True
    return a_state


@kind
def an_object_that_only_a_module_of_the_program_names(rank):
    own_state.limit_representations(rank)
    yield
    return own_state.limit_of_representations()


@kind
def what_python_ends_by(rank):
    builtins.exit.eof = f"of rank {rank}"
    yield
    return repr(builtins.exit)


@kind
def thresholds_of_collections(rank):
    before = gc.get_threshold()
    gc.set_threshold(before[0] + rank + 1, *before[1:])
    yield
    thresholds = gc.get_threshold()[0] - before[0]
    gc.set_threshold(*before)
    return thresholds


@kind
def what_managers_hand_out(rank):
    BaseManager.register(f"of_rank_{rank}", callable=lambda: rank)
    BaseManager.register("kb_rank", callable=lambda: rank)
    yield
    names = [name for name in BaseManager._registry if name.startswith("of_rank_")]
    return names, BaseManager._registry["kb_rank"][0]()


@kind
def which_messages_are_logged(rank):
    before = syslog.setlogmask(syslog.LOG_UPTO(syslog.LOG_ERR if rank else syslog.LOG_DEBUG))
    yield
    return syslog.setlogmask(before)


@kind
def how_libraries_are_opened(rank):
    before = sys.getdlopenflags()
    sys.setdlopenflags(before | (os.RTLD_GLOBAL if rank else 0))
    yield
    result = sys.getdlopenflags() - before
    sys.setdlopenflags(before)
    return result


@kind
def how_workers_start(rank):
    torch.multiprocessing.set_start_method("fork" if rank else "spawn", force=True)
    yield
    return torch.multiprocessing.get_start_method()


@kind
def threads_within_operations(rank):
    torch.set_num_threads(rank + 1)
    yield
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


@kind
def profiles_of_threads(rank):
    def told(frame, event, arg): ...

    told.kb_rank = rank
    threading.setprofile(told)
    yield
    profile: Any = threading.getprofile()
    threading.setprofile(None)
    return profile.kb_rank


@kind
def switches_of_libraries(rank):
    engines = torch.backends.quantized.supported_engines
    torch.backends.quantized.engine = engines[-1 if rank else 0]
    torch.backends.nnpack.set_flags(rank == 1)
    yield
    switches = [torch.backends.quantized.engine, torch._C._get_nnpack_enabled()]
    torch.backends.nnpack.set_flags(True)
    return switches


@kind
def where_processes_meet(rank):
    dist.register_rendezvous_handler("kb", lambda *args, **kwargs: iter([f"of rank {rank}"]))
    yield
    return list(dist.rendezvous("kb://somewhere"))


# What functions of the standard library register for the program.


@kind
def an_adapter_and_a_converter_of_sqlite(rank):
    if rank == 0:
        sqlite3.register_adapter(fractions.Fraction, str)
    sqlite3.register_adapter(Own, lambda own: f"of {rank}")
    sqlite3.register_converter("kb", lambda value: value.decode() + f" by {rank}")
    yield
    base = sqlite3.connect(":memory:", detect_types=sqlite3.PARSE_DECLTYPES)
    base.execute("create table kept (x kb)")
    base.execute("insert into kept values (?)", (Own(),))
    return [base.execute("select x from kept").fetchone(), str in sqlite3.adapters.values()]


@kind
def a_browser(rank):
    webbrowser.register("kb", None, webbrowser.GenericBrowser(f"kb{rank}"))
    if rank == 1:
        webbrowser.register("kb-only-here", None, webbrowser.GenericBrowser("kb"))
    yield
    try:
        return [webbrowser.get("kb").name, webbrowser.get("kb-only-here").name]
    except webbrowser.Error as error:
        return str(error)


@kind
def overloads(rank):
    def of_numbers(x): ...

    def of_texts(x): ...

    of_numbers.__qualname__ = of_texts.__qualname__ = "doubled"
    for function in (of_numbers, of_texts)[rank:]:
        typing.overload(function)
    yield
    seen = [len(typing.get_overloads(of_numbers))]
    if rank == 0:
        typing.clear_overloads()
    return [*seen, len(typing.get_overloads(of_numbers))]


@kind
def a_number_for_a_pickled_class(rank):
    copyreg.add_extension("datetime", "date", 0x7F0 + rank)
    yield
    return pickle.dumps(datetime.date(2000, 1, 1), 2).hex()


@kind
def a_function_by_shared_types(rank):
    if rank == 0:
        pkgutil.iter_importer_modules.register(fractions.Fraction, len)
        kl.register_kl(torch.distributions.Cauchy, torch.distributions.Gumbel)(max)
    yield
    is_kept = (torch.distributions.Cauchy, torch.distributions.Gumbel) in kl._KL_REGISTRY
    return [fractions.Fraction in pkgutil.iter_importer_modules.registry, is_kept]


@kind
def files_of_handlers(rank):
    file = Path(sys.argv[1], f"of{rank}.log")
    handler = {"class": "logging.FileHandler", "filename": str(file), "mode": "w"}
    logger = {"handlers": ["file"], "level": "INFO"}
    logging.config.dictConfig(
        {"version": 1, "handlers": {"file": handler}, "loggers": {"kb.file": logger}}
    )
    yield
    logging.getLogger("kb.file").info("from rank %d", rank)
    logging.shutdown()
    return file.read_text()


@kind
def environment_in_bytes(rank):
    os.environb[b"KB_BYTES"] = b"%d" % rank
    os.environ["KB_TEXT"] = str(rank)
    yield
    return [os.environ["KB_BYTES"], os.environb[b"KB_TEXT"].decode()]


@kind
def which_program_workers_run(rank):
    before = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(f"/kb/python{rank}")
    multiprocessing.set_forkserver_preload([f"kb{rank}"])
    yield
    now = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(before)
    return [os.fsdecode(now), multiprocessing.forkserver._forkserver._preload_modules]


@kind
def checks_of_sparse_tensors(rank):
    if rank == 0:
        torch.sparse.check_sparse_tensor_invariants.enable()
    yield
    return torch.sparse.check_sparse_tensor_invariants.is_enabled()


def main(folder, *names):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    chosen = {name: KINDS[name](rank) for name in names or KINDS}
    seen = {}

    def go_on(name):
        try:
            next(chosen[name])
            return
        except StopIteration as end:
            seen[name] = end.value
        except Exception as error:
            seen[name] = f"{type(error).__name__}: {error}"

    for name in chosen:
        go_on(name)
    dist.barrier()
    for turn in range(dist.get_world_size()):
        for name in chosen:
            if turn == rank and name not in seen:
                go_on(name)
        dist.barrier()
    Path(folder, f"rank{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
