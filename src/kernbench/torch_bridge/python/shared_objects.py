"""``multiprocessing.Manager()`` among ranks, which share its objects without a server process."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterable
from multiprocessing import managers
from typing import Any, Self

_Value: Any = vars(managers)["Value"]


class SharedDict(dict[Any, Any]):
    """The result of ``Manager().dict()``."""


class SharedList(list[Any]):
    """The result of ``Manager().list()``."""


class SharedArray(array.array):  # type: ignore[type-arg]
    """The result of ``Manager().Array()``."""

    def __new__(cls, typecode: str, values: Iterable[Any], lock: bool = True) -> Self:
        return super().__new__(cls, typecode, values)


class SharedObjects(managers.SyncManager):
    """A manager whose objects are passed without copies or proxies, as through queues."""

    def __init__(self, made: dict[str, Callable[..., Any]]) -> None:
        # The base class's constructor would prepare to start a server.
        self.__dict__.update(
            made,
            dict=SharedDict,
            list=SharedList,
            Array=SharedArray,
            Namespace=managers.Namespace,
            Value=_Value,
        )

    def start(self, initializer: Any = None, initargs: Iterable[Any] = ()) -> None:
        """Call the initializer: there is nothing else to start."""
        if initializer is not None:
            initializer(*initargs)

    def shutdown(self) -> None:  # type: ignore[override]
        """Accept it: nothing has been started."""

    def join(self, timeout: float | None = None) -> None:
        """Accept it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


SHARED_OBJECTS = (
    SharedDict,
    SharedList,
    SharedArray,
    SharedObjects,
    managers.Namespace,
    _Value,
)
"""Types of objects that ranks share instead of copying."""
