"""Takes from Python what a platform lacks, before anything else is imported: Python imports this
module first in a process that has its folder in PYTHONPATH. The platform's name is in the
environment.

What the standard library and billiard need on Linux is imported before: they have code of their own
for the platform.
"""

# ruff: noqa: F401
import asyncio
import builtins
import functools
import getpass
import io
import multiprocessing
import os
import platform
import select
import selectors
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

import billiard.pool

MACOS = {
    os: ("pidfd_open", "waitid"),  # Python has no `waitid` for macOS before 3.13
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI"),
    select: ("epoll",),
    signal: ("pidfd_send_signal",),
}
WINDOWS = {
    os: (
        *(
            "pidfd_open",
            "waitid",
            "WNOHANG",
            "WNOWAIT",
            "WEXITED",
            "P_PID",
            "wait",
            "wait3",
            "wait4",
        ),
        *("register_at_fork", "fork", "forkpty", "getuid", "getgid"),
        *("getpgid", "getpgrp", "killpg", "setsid", "fchown", "writev", "readv", "mkfifo", "nice"),
        *("getloadavg", "sched_getaffinity", "sysconf", "openpty"),
    ),
    time: ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "clock_gettime"),
    select: ("epoll", "poll"),
    signal: (
        *("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGALRM", "SIGCHLD", "SIGSTOP"),
        *("pthread_kill", "pthread_sigmask", "alarm", "setitimer", "pidfd_send_signal"),
    ),
    socket: ("AF_UNIX",),
}
NO_MODULES = ("termios", "tty", "fcntl", "pwd", "grp", "resource", "syslog")


def _without_proc(opens):
    def open_elsewhere(file, *args, **kwargs):
        if isinstance(file, str | os.PathLike) and os.fspath(file).startswith("/proc/"):
            raise FileNotFoundError(2, "this platform has no /proc", file)
        return opens(file, *args, **kwargs)

    return functools.partial(open_elsewhere)  # no method: Python 3.10 makes it one of a class


def _without(names, imports):
    def import_others(name, *args, **kwargs):
        is_relative = any(args[3:]) or kwargs.get("level")
        if name in names and not is_relative:
            raise ModuleNotFoundError(f"this platform has no {name}", name=name)
        return imports(name, *args, **kwargs)

    return import_others


def lack(names):
    for module, missing in names.items():
        for name in missing:
            vars(module).pop(name, None)
    builtins.open = io.open = _without_proc(open)


if os.environ["TEST_PLATFORM"] == "macos":
    lack(MACOS)
else:
    socket.socketpair = functools.partial(socket.socketpair, socket.AF_UNIX)
    lack(WINDOWS)
    # By `sys.platform` Celery knows that there is none. It asks another user for `getuid` as well.
    os.geteuid = lambda: 0
    builtins.__import__ = _without(NO_MODULES, __import__)
    # By this Celery tells. `sys.platform` stays: the standard library would load DLLs.
    platform.system = lambda: "Windows"
