"""What a process gives up before it runs a user's own code. Needs no privileges, and cannot be taken back.

A filter of system calls (seccomp.py) refuses what reaches beyond the process: the network, other processes, and every change of a file. A filter
sees the numbers that a call is given, but not what they point to: a file is opened for reading only, whatever its name, and calls whose numbers
tell nothing (openat2, io_uring) are refused whole. What is open already, as the pipes to the parent and the log, stays so.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from .. import seccomp

MAX_LOG_BYTES = 1_000_000
"""What the code prints goes into a file of the parent."""
SPARE_SECONDS = 60

_REFUSED = (
    # the network
    "socket 41 198, connect 42 203, socketpair 53 199",
    # new processes, threads and programs
    "clone 56 220, fork 57 -, vfork 58 -, clone3 435 435, execve 59 221, execveat 322 281",
    # signals
    "kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, pidfd_send_signal 424 424",
    # other processes: looking into them, and how fast they are
    "ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, pidfd_open 434 434, pidfd_getfd 438 438, kcmp 312 272",
    "process_madvise 440 440, process_mrelease 448 448, move_pages 279 239, migrate_pages 256 238, setpriority 141 140, ioprio_set 251 30",
    "sched_setparam 142 118, sched_setscheduler 144 119, sched_setaffinity 203 122, sched_setattr 314 274",
    # the kernel, and what outlives the process
    "keyctl 250 219, add_key 248 217, request_key 249 218, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282",
    "shmget 29 194, shmat 30 196, shmctl 31 195, msgget 68 186, msgctl 71 187, semget 64 190, semctl 66 191, mq_open 240 180, mq_unlink 241 181",
    # other ways to open: flags behind a pointer, without a name, in memory, or by a queue that the filter does not see
    "creat 85 -, openat2 437 437, open_by_handle_at 304 265, memfd_create 319 279, memfd_secret 447 447",
    "io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427",
    # what is in a file, and its locks
    "truncate 76 45, ftruncate 77 46, fallocate 285 47, flock 73 32",
    # names
    "rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, unlink 87 -, unlinkat 263 35",
    "mkdir 83 -, mkdirat 258 34, rmdir 84 -, mknod 133 -, mknodat 259 33",
    # owners, modes, times, attributes
    "chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54, chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452",
    "utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88",
    "setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16",
    # file systems
    "mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, unshare 272 97, setns 308 268, swapon 167 224, swapoff 168 225",
    "open_tree 428 428, move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442",
    "quotactl 179 60, quotactl_fd 443 443, acct 163 89",
)
_CHANGING = 0o20001103
"""Flags of an open that is not for reading only: __O_TMPFILE, O_TRUNC, O_CREAT, O_WRONLY and O_RDWR."""
_FLAGS = (("open 2 -", 1, _CHANGING), ("openat 257 56", 2, _CHANGING))

_ONLY = (
    # TCGETS, TCGETS2 and TIOCGWINSZ (is it a terminal), FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: others change files that are open for reading
    ("ioctl 16 29", 1, (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC: others lock files, or have signals sent to other processes
    ("fcntl 72 25", 1, (0, 1, 2, 3, 4, 1030)),
    # of itself
    ("prlimit64 302 261", 0, (0,)),
)


def confine(memory: int, seconds: int) -> None:
    """Raises OSError where the kernel cannot: code is then not run."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    now = pages * os.sysconf("SC_PAGE_SIZE")
    limits = {
        resource.RLIMIT_AS: now + memory,
        # a backstop: the parent keeps time, and takes only that in which it asks
        resource.RLIMIT_CPU: seconds + SPARE_SECONDS,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_FSIZE: MAX_LOG_BYTES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (least, least))
    seccomp.drop_capabilities()
    seccomp.install(filter_steps(platform.machine()))


def filter_steps(machine: str) -> Iterator[seccomp.Step]:
    """Raises OSError for a machine whose calls are not known."""
    return seccomp.filter_steps(machine, _REFUSED, flags=_FLAGS, only=_ONLY)
