"""Every error that a user of kernbench can meet.

A user's mistake raises a :class:`KernbenchError` that is also the fitting built-in, so that both
``except kernbench.KernbenchError`` and ``except ValueError`` work. Errors keep every field in
``args``: SimPy re-raises ``type(e)(*e.args)``.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable


class KernbenchError(Exception):
    """A mistake in the program or the machine that kernbench was given."""


class InternalError(Exception):
    """A bug in kernbench itself; never the user's fault."""


def raisable(error: Exception, where: str) -> Exception:
    """Return an error of ours for one that is kept, to be raised where somebody waits.

    There it may be inside of an iterator, which StopIteration would end as if all was well.
    """
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    internal_error = InternalError(f"{where} raised {type(error).__name__}")
    internal_error.__cause__ = error
    return internal_error


class UsageError(KernbenchError, ValueError):
    """An argument has a value that cannot be used; says what was asked and what is possible."""


class OutputError(UsageError, OSError):
    """A file that cannot be written, or must not be: names who asked for it and the reason."""


class UnknownNameError(KernbenchError, LookupError):
    """A name (machine, bench, parameter, key, op) that does not exist; names the nearest known."""


class MissingNameError(KernbenchError, AttributeError):
    """A name that PyTorch's ``torch`` has and a run's may not have; says where there is more."""


class MachineError(KernbenchError, ValueError):
    """A machine description that is not valid; names the file and the key."""


class UnsupportedOpError(KernbenchError, NotImplementedError):
    """A TTIR operation that kernbench does not run yet; names the op, the kernel and the line."""


class NeedsDataError(UnsupportedOpError):
    """A kernel decides by data what it does next; names the operation, the kernel and the line."""


class KernelParseError(KernbenchError, ValueError):
    """TTIR text that could not be read; names the line of the text."""


class IndexRangeError(KernbenchError, IndexError):
    """An index of a tensor that it does not have; gives the index, the dim and its size."""


class OutOfBoundsError(KernbenchError, IndexError):
    """A kernel touched memory outside its tensors; names tensor, byte, program and source line."""


class OutOfBoundsWarning(RuntimeWarning):
    """A read outside of a tensor in a run that allows them; said once per line of a kernel."""


class UninitializedReadError(KernbenchError, ValueError):
    """A command read bytes that nothing had written; found with ``check=True``."""


class DataRaceError(KernbenchError, RuntimeError):
    """Two accesses in no order touch the same bytes, and one writes; names both source lines."""


class UndefinedValueError(KernbenchError, ValueError):
    """A lane that a mask switched off was used; names the line that loaded it and the use."""


class TunedInPlaceError(KernbenchError, RuntimeError):
    """A tuned kernel changes what its candidates would have changed before it, on a GPU."""


class WrongHintError(KernbenchError, ValueError):
    """What a kernel tells the compiler of a value does not hold (``tl.multiple_of`` and the like).

    A GPU would move the wrong bytes, or fault.
    """


class AddressOverflowError(KernbenchError, OverflowError):
    """The 32-bit arithmetic of an address left its range; names the operation and its line."""


class NonFiniteError(KernbenchError, FloatingPointError):
    """A kernel made NaN or Inf out of finite numbers; found with ``nan_is_error=True``."""


class NonFiniteWarning(RuntimeWarning):
    """A kernel made NaN or Inf out of finite numbers; said once per run with ``check=True``."""


class ConversionWarning(RuntimeWarning):
    """A kernel stored what a float out of an integer's range became; said once per run."""


class OutOfMemoryError(KernbenchError, MemoryError):
    """HBM or TCM is exhausted; gives requested, free and capacity, and the largest live tensors."""


class BadPointerError(KernbenchError, ValueError):
    """A pointer that belongs to no live tensor of this run."""


class UnreachableError(BadPointerError):
    """A pointer into another SIP's memory that its rank has not shared."""


class NoDataError(KernbenchError, RuntimeError):
    """Tensor values were asked for in a run without data."""


class CollectiveMismatchError(KernbenchError, RuntimeError):
    """Ranks called different collectives; lists each rank's call and where it was made."""


class DeadlockError(KernbenchError, RuntimeError):
    """Nothing can make progress; lists every rank, what it waits for, since when and where."""


class CollectiveTimeoutError(KernbenchError, RuntimeError):
    """Ranks did not come to a collective in time; lists every rank and what it is at."""


class RankFailedError(KernbenchError, RuntimeError):
    """Another rank ended while this one waited for it."""


class RankDiedError(RankFailedError):
    """A rank's process has ended by a fault of the machine's scenario."""


class DeviceAssertError(KernbenchError, AssertionError):
    """A ``tl.device_assert`` does not hold; names its message, line, program and element."""


class CheckFailedError(KernbenchError, AssertionError):
    """A program's own check did not hold; says what differed and by how much."""


class OsExit(SystemExit):
    """A rank called ``os._exit``: it ends, and not the process that all ranks share."""


class SignalEnd(OsExit):
    """A rank has sent itself a signal that ends it."""


def exit_call(end: SystemExit) -> str:
    """Return the call that ended a rank.

    >>> exit_call(SystemExit(3)), exit_call(OsExit(0)), exit_call(SystemExit())
    ('sys.exit(3)', 'os._exit(0)', 'sys.exit()')
    >>> exit_call(SignalEnd(-15))
    'os.kill(os.getpid(), SIGTERM)'
    """
    if isinstance(end, SignalEnd):
        assert isinstance(end.code, int)
        return f"os.kill(os.getpid(), {signal.Signals(-end.code).name})"
    name = "os._exit" if isinstance(end, OsExit) else "sys.exit"
    return f"{name}({'' if end.code is None else repr(end.code)})"


_MOST_LISTED = 200
"""Names that an error lists; more would hide what it says."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest known names, or all of a short list.

    >>> nearest("ahmb", ["ahbm", "h100"])
    'did you mean ahbm?'
    >>> nearest("H100", ["ahbm", "h100-sxm"])
    'did you mean h100-sxm?'
    >>> nearest("zzz", ["ahbm", "h100"])
    'known: ahbm, h100'
    >>> nearest("zzz", map(str, range(300)))
    'none of the 300 known names is like it'
    """
    known = sorted(known)
    folded = {name.casefold(): name for name in known}
    asked = name.casefold()
    close = [name for name in folded if len(asked) > 1 and name.startswith(asked)]
    close += [match for match in difflib.get_close_matches(asked, folded) if match not in close]
    if close:
        return f"did you mean {' or '.join(folded[name] for name in close[:3])}?"
    if len(known) > _MOST_LISTED:
        return f"none of the {len(known)} known names is like it"
    return f"known: {', '.join(known)}" if known else "none are known"


def is_host_exhausted(error: BaseException) -> bool:
    """Return whether the memory of this machine has run out, as Python, numpy or PyTorch say it."""
    is_pytorchs = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return isinstance(error, MemoryError) or is_pytorchs
