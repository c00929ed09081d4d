"""Classes that keep what they know of their process on themselves."""

import os
from typing import Any, ClassVar


class PartialState:
    """Remembers the first rank that it was made in."""

    _shared_state: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.__dict__ = self._shared_state
        if not self._shared_state:
            self.rank = int(os.environ["RANK"])


class AcceleratorState:
    """Shares its attributes as well."""

    _shared_state: ClassVar[dict[str, Any]] = {}


class GradientState:
    """Shares its attributes as well."""

    _shared_state: ClassVar[dict[str, Any]] = {}
