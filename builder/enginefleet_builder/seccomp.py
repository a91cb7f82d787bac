"""Filters of system calls (seccomp): what a process may no longer ask of the kernel, its children neither. Needs no privileges, cannot be taken back.

Calls are written as `name number number`, the numbers on x86-64 and on aarch64 (Linux's syscall tables), - where there is none; several in a text are
separated by commas. Only the standard library: prepare/export_fence.py loads this file by its path.
"""

import ctypes
import errno
import os
from collections.abc import Iterator, Sequence

_RETURN_ERRNO, _ALLOW, _KILL = 0x00050000, 0x7FFF0000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_REFUSE = _RETURN_ERRNO | errno.EPERM
_UNKNOWN = _RETURN_ERRNO | errno.ENOSYS
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Where the filter finds them: struct seccomp_data, of a machine that stores the low half of a number first."""
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Their numbers in audit.h."""
_NEWER = 463
"""Calls from here on (the first is setxattrat, of Linux 6.13) are newer than this list. On x86-64 these are also other guises of known calls (x32)."""

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_CAPABILITIES_V3 = 0x20080522

Step = tuple[int, int, int, int]
"""Of a filter: code, steps to skip when it holds and when not, value."""
Flags = tuple[str, int, int]
"""A call that is refused with any of these bits in the argument of that number: (call, argument, bits)."""
Only = tuple[str, int, tuple[int, ...]]
"""A call that is refused but for these values of the argument of that number: (call, argument, values)."""


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def install(filter: Iterator[Step]) -> None:
    """Raises OSError where the kernel cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "privileges cannot be given up")
    steps = list(filter)
    array = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
    program = _Program(len(steps), array)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"system calls cannot be filtered ({os.strerror(ctypes.get_errno())})")


def drop_capabilities() -> None:
    """Raises OSError where the kernel does not let it."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint * 2)(_CAPABILITIES_V3, 0)
    nothing = (ctypes.c_uint * 6)()
    if libc.capset(ctypes.byref(header), ctypes.byref(nothing)) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


def filter_steps(machine: str, refused: Sequence[str], flags: Sequence[Flags] = (), only: Sequence[Only] = ()) -> Iterator[Step]:
    """All else is allowed. Raises OSError for a machine whose calls are not known."""
    if machine not in _ARCHITECTURES:
        raise OSError(0, f"no list of system calls is known for {machine}")
    yield from ((_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _ARCHITECTURES[machine]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER))
    yield from ((_AT_LEAST, 0, 1, _NEWER), (_RETURN, 0, 0, _UNKNOWN))
    for call in ", ".join(refused).split(", "):
        yield from _when(call, machine, [(_RETURN, 0, 0, _REFUSE)])
    for call, argument, bits in flags:
        refuse = [(_ANY_BIT, 0, 1, bits), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
        yield from _when(call, machine, [_load(argument), *refuse])
    for call, argument, values in only:
        allow = [step for value in values for step in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))]
        yield from _when(call, machine, [_load(argument), *allow, (_RETURN, 0, 0, _REFUSE)])
    yield _RETURN, 0, 0, _ALLOW


def _when(call: str, machine: str, steps: list[Step]) -> list[Step]:
    """Steps that end the filter for this call, and are skipped for others."""
    _, *numbers = call.split()
    number = numbers[list(_ARCHITECTURES).index(machine)]
    return [] if number == "-" else [(_EQUAL, 0, len(steps), int(number)), *steps]


def _load(argument: int) -> Step:
    # of the kernel's own types of these arguments, the low 32 bits are all there is
    return _LOAD, 0, 0, _ARGUMENTS + 8 * argument
