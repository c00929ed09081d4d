"""Tests of which one never ends: it waits in C, where no signal reaches Python."""

import ctypes
import threading


def test_that_ends():
    pass


def test_that_hangs():
    lock = threading.Lock()
    lock.acquire()
    ctypes.pythonapi.PyThread_acquire_lock.argtypes = [ctypes.c_void_p, ctypes.c_int]
    # The lock's handle is the first field behind the object's head.
    handle = ctypes.c_void_p.from_address(id(lock) + object.__basicsize__).value
    ctypes.pythonapi.PyThread_acquire_lock(handle, 1)
