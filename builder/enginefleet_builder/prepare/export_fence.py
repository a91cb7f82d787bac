"""Starts a program that can change files below one folder only: export.py puts the exporter behind it. Nothing of ours is imported but seccomp.py, by path.

    python -I export_fence.py FOLDER files PROGRAM ARGUMENT ...
    python -I export_fence.py FOLDER files,calls PROGRAM ARGUMENT ...

`files`: by Landlock (Linux 5.13). `calls`: a filter of system calls, too, for where namespaces are not allowed, as the default profile of container
runtimes has it: no sockets; no signals to others; no leaving of the process group, so that whoever ends the group ends all of it. That others'
memory cannot be reached is Landlock's doing. Neither needs privileges nor can be taken back. Ends with REFUSED and one line where the kernel can't.
"""

import ctypes
import os
import platform
import struct
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

REFUSED = 75
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""The same numbers on x86-64 and aarch64."""
_VERSION, _PATH_BENEATH, _PR_SET_NO_NEW_PRIVS = 1, 1, 38
_WRITE_FILE = 1 << 1
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
"""Of linux/landlock.h: writing, and bits 4 to 12, which remove and make folders and files of each kind. Modes, owners and times it does not know."""
_SINCE = ((2, 1 << 13), (3, 1 << 14))
"""From which version on it knows: moving to another folder (refused before), truncating (not refused before Linux 6.2)."""
_REFUSED_CALLS = (
    # the network, and what lets a socket send signals
    "socket 41 198, connect 42 203, socketpair 53 199",
    # signals to others, and leaving the process group
    "tkill 200 130, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, pidfd_send_signal 424 424, setsid 112 157, setpgid 109 154",
    # other processes
    "ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, pidfd_open 434 434, pidfd_getfd 438 438, kcmp 312 272",
    "process_madvise 440 440, process_mrelease 448 448, move_pages 279 239, migrate_pages 256 238",
    # the kernel, and calls that the filter does not see into
    "keyctl 250 219, add_key 248 217, request_key 249 218, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282",
    "io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, unshare 272 97, setns 308 268",
    "mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51",
    "open_tree 428 428, move_mount 429 429, fsopen 430 430, fsmount 432 432, mount_setattr 442 442",
)
# all but those that have signals sent to other processes
_FCNTL = (*range(8), 9, 11, 16, *range(36, 39), *range(1024, 1026), *range(1030, 1041))


def fence(folder: str) -> None:
    """From now on this process and its children change files below `folder` only. Raises OSError where the kernel has no Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        raise OSError(ctypes.get_errno(), f"there is no Landlock (Linux 5.13): {os.strerror(ctypes.get_errno())}")
    changes = _CHANGES | sum(bit for since, bit in _SINCE if version >= since)
    rules = _checked(libc.syscall(_CREATE_RULESET, struct.pack("=Q", changes), ctypes.c_size_t(8), 0))
    for path, allowed in ((folder, changes), (os.devnull, _WRITE_FILE)):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        _checked(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", allowed, place), 0))
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(libc.syscall(_RESTRICT_SELF, rules, 0))


def filter_calls() -> None:
    """From now on no sockets, no signals to others, no leaving of the process group. Raises OSError where the kernel cannot."""
    own = os.getpid()
    only = (("kill 62 129", 0, (0, own)), ("tgkill 234 131", 0, (own,)), ("fcntl 72 25", 1, _FCNTL))
    seccomp = _seccomp()
    seccomp.drop_capabilities()
    seccomp.install(seccomp.filter_steps(platform.machine(), _REFUSED_CALLS, only=only))


def _seccomp() -> Any:
    found = spec_from_file_location("seccomp", Path(__file__).parent.parent / "seccomp.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _checked(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


if __name__ == "__main__":
    try:
        fence(sys.argv[1])
        if "calls" in sys.argv[2].split(","):
            filter_calls()
    except OSError as error:
        print(error.strerror, file=sys.stderr)
        sys.exit(REFUSED)
    os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606
