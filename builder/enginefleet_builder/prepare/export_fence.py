"""Starts a program that can change files below one folder only: export.py puts the exporter behind it. Nothing of ours is imported.

    python -I export_fence.py FOLDER PROGRAM ARGUMENT ...

By Landlock (Linux 5.13), which needs no privileges and cannot be taken back. Ends with NO_LANDLOCK where the kernel lacks it.
"""

import ctypes
import os
import struct
import sys

NO_LANDLOCK = 75
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""The same numbers on x86-64 and aarch64."""
_VERSION, _PATH_BENEATH, _PR_SET_NO_NEW_PRIVS = 1, 1, 38
_WRITE_FILE = 1 << 1
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
"""Of linux/landlock.h: writing, and bits 4 to 12, which remove and make folders and files of each kind. Modes, owners and times it does not know."""
_SINCE = ((2, 1 << 13), (3, 1 << 14))
"""From which version on it knows: moving to another folder (refused before), truncating (not refused before Linux 6.2)."""


def fence(folder: str) -> bool:
    """From now on this process and its children change files below `folder` only. False: the kernel has no Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return False
    changes = _CHANGES | sum(bit for since, bit in _SINCE if version >= since)
    rules = _checked(libc.syscall(_CREATE_RULESET, struct.pack("=Q", changes), ctypes.c_size_t(8), 0))
    for path, allowed in ((folder, changes), (os.devnull, _WRITE_FILE)):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        _checked(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", allowed, place), 0))
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(libc.syscall(_RESTRICT_SELF, rules, 0))
    return True


def _checked(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


if __name__ == "__main__":
    if not fence(sys.argv[1]):
        sys.exit(NO_LANDLOCK)
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606
