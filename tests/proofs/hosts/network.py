"""Hosts on this machine, and a switch between them that can cut.

A host is a network namespace with a TAP device. Its other end is a file in this process, and a
thread here, the switch, passes each frame on, or not. So a cut is silent, as it is
between machines: nobody gets an error, the packets just do not arrive. `tc netem` would do the
same, but it is a kernel module that many machines do not have.

The namespaces have no names. So two networks do not meet, and a namespace is gone with the last
process in it, however this process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import selectors
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
#: Of <linux/if_tun.h>: make a device on this file; Ethernet frames; nothing before each frame.
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
#: How the address of each host begins: that of a private network, and that of its device.
_NETWORK, _MAC = "10.0.0", "02:00:00:00:00"
_NAMESPACE = "/proc/thread-self/ns/net"
_FRAME = 65536


def why_not() -> str | None:
    """Why there can be no network here; None if there can."""
    missing = [each for each in ("ip", "setpriv") if shutil.which(each) is None]
    if missing:
        return f"{missing[0]} is not there"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    try:
        with Network(2):
            return None
    except (OSError, AttributeError, subprocess.CalledProcessError) as exc:
        return f"no network namespaces with TAP devices here: {exc}"


class Host:
    """A host: programs that are started `inside` see its network only.

    Args:
        number: of the host, from 1.

    Attributes:
        name: "A", "B" and so on.
        address: its IP address.
        device: the file of its network device.
    """

    def __init__(self, number: int) -> None:
        self.name = chr(ord("A") + number - 1)
        self.address = f"{_NETWORK}.{number}"
        self._home = os.open(_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
        self._namespace = self.device = -1
        try:
            self._make(f"{_MAC}:{number:02x}")
        except BaseException:
            self.close()
            raise

    def _make(self, mac: str) -> None:
        _check(_libc.unshare(_CLONE_NEWNET))
        try:
            self._namespace = os.open(_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
            self.device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            asked = struct.pack("16sH22x", b"eth0", _IFF_TAP | _IFF_NO_PI)
            fcntl.ioctl(self.device, _TUNSETIFF, asked)
            lines = (
                "link set lo up",
                f"link set eth0 address {mac} addrgenmode none up",
                f"address add {self.address}/24 dev eth0",
            )
            text = "\n".join(lines).encode()
            subprocess.run(["ip", "-batch", "-"], input=text, capture_output=True, check=True)
        finally:
            self._enter(self._home)

    @staticmethod
    def _enter(namespace: int) -> None:
        _check(_libc.setns(namespace, _CLONE_NEWNET))

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What this thread connects to and starts meanwhile is in this host."""
        self._enter(self._namespace)
        try:
            yield
        finally:
            self._enter(self._home)

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a program in this host. It ends with the thread that has started it."""
        tied = ("setpriv", "--pdeathsig", "KILL", "--", *command)
        with self.inside():
            return subprocess.Popen(tied, text=True, start_new_session=True, **options)

    def close(self) -> None:
        for each in (self.device, self._namespace, self._home):
            if each >= 0:
                os.close(each)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Network:
    """Some hosts and the switch between them.

    Args:
        count: how many hosts.

    Attributes:
        hosts: the hosts.
    """

    def __init__(self, count: int) -> None:
        self.hosts: list[Host] = []
        self._stop = os.pipe2(os.O_CLOEXEC)
        self.heal()
        try:
            for number in range(count):
                self.hosts.append(Host(number + 1))
        except BaseException:
            self._close()
            raise
        self._thread = threading.Thread(target=self._run, name="switch", daemon=True)

    # -- what happens to the links --------------------------------------------------------

    def cut(self, host: Host) -> None:
        """Nothing gets to this host or from it."""
        self._cut_off.add(host.address)

    def heal(self) -> None:
        """All links are well again."""
        self._cut_off: set[str] = set()

    # -- the switch -----------------------------------------------------------------------

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stop[0], selectors.EVENT_READ)
            for number, host in enumerate(self.hosts):
                selector.register(host.device, selectors.EVENT_READ, number)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    self._pass_on(key.data)

    def _pass_on(self, number: int) -> None:
        """Pass on what this host has sent."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                frame = os.read(self.hosts[number].device, _FRAME)
                for to in self._receivers(number, frame):
                    self._deliver(to, frame)

    def _receivers(self, number: int, frame: bytes) -> list[int]:
        """Who gets this frame: the host that it names, or all; not those to whom it is lost."""
        named = frame[5] - 1  # the last byte of the address
        everyone = bool(frame[0] & 1) or not 0 <= named < len(self.hosts)
        others = [to for to in range(len(self.hosts)) if to != number]
        return [to for to in others if (everyone or to == named) and self._passes(number, to)]

    def _passes(self, number: int, to: int) -> bool:
        return not {self.hosts[number].address, self.hosts[to].address} & self._cut_off

    def _deliver(self, to: int, frame: bytes) -> None:
        with contextlib.suppress(BlockingIOError):  # its queue is full: a switch drops, too
            os.write(self.hosts[to].device, frame)

    # -- start and end --------------------------------------------------------------------

    def __enter__(self) -> Network:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.write(self._stop[1], b".")
        self._thread.join()
        self._close()

    def _close(self) -> None:
        for host in self.hosts:
            host.close()
        for each in self._stop:
            os.close(each)
