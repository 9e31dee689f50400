"""Time travel: the memory's clock, and those of this package, go ahead."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from celery import signals

from ..app.housekeeper import housekeeper
from ..app.internals import bring_forward, hasten
from ..lock.heartbeat import heartbeat
from ..lock.lease import Lease
from ..protocol.clock import clock
from ..servers.server import Server

#: Whose clocks go ahead.
_TRAVEL: Final = ("celery_redislock", "fakeredis")
#: Extends a lock by so many ms, if it is under this value.
_KEEP: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], redis.call('PTTL', KEYS[1]) + ARGV[2])
end
"""


class _Time(ModuleType):
    """The module `time`, whose wall clock is ahead."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__("time")
        self.time = now

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class _Clocks:
    """The clocks of this process, as this package and the memory see them."""

    def __init__(self) -> None:
        #: Seconds by which the wall clock is ahead.
        self.ahead = 0.0
        #: Seconds that have passed at once since the process began. The monotonic clock is ahead by
        #: that, and never goes back: what is due by it would be late.
        self.passed = 0.0
        self._replaced: list[tuple[ModuleType, Any]] = []

    def advance(self, seconds: float) -> None:
        """Move the clocks ahead, in all modules that are imported by now."""
        self.ahead += seconds
        self.passed += seconds
        ahead = _Time(lambda: time.time() + self.ahead)
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] not in _TRAVEL or name == __name__:
                continue
            if vars(module).get("clock") is clock:
                module.clock = self._monotonic  # type: ignore[attr-defined]
            if vars(module).get("time") is time:
                self._replaced.append((module, time))
                module.time = ahead  # type: ignore[attr-defined]

    def _monotonic(self) -> float:
        return clock() + self.passed

    def restore(self) -> None:
        """Give all modules their wall clock again."""
        self.ahead = 0.0
        while self._replaced:
            module, original = self._replaced.pop()
            module.time = original  # type: ignore[attr-defined]


_clocks: Final = _Clocks()


# -- messages ---------------------------------------------------------------------------------

#: The header of a message that says how many seconds had passed at once when it was sent.
_PASSED: Final = "redislock_passed"
#: The timers of workers in this process, which count down for messages.
_timers: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


@signals.before_task_publish.connect
def _on_publish(headers: Any = None, **kwargs: Any) -> None:
    if _clocks.passed and isinstance(headers, dict):
        headers[_PASSED] = _clocks.passed


@signals.task_received.connect
def _on_received(sender: Any, request: Any, **kwargs: Any) -> None:
    """Shorten a countdown by what passed on the message's way, once for all memories."""
    bring_forward(request, _clocks.passed - request.request_dict.get(_PASSED, 0.0))
    _timers.add(sender.timer)


# -- memories ---------------------------------------------------------------------------------

#: The memories that there are, and a client of each.
_clients: Final[weakref.WeakKeyDictionary[Server, Any]] = weakref.WeakKeyDictionary()


class Travel:
    """Moves the clocks ahead, until `end`."""

    def __init__(self, server: Server, client: Any) -> None:
        _clients[server] = client
        self._travelled = 0.0

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, in which the holders in this process kept their locks."""
        for timer in list(_timers):
            hasten(timer, seconds)
        for lease in _kept():
            _prolong(lease, seconds)
            lease.deadline += seconds
            lease.next_beat += seconds
        self._travelled += seconds
        _clocks.advance(seconds)
        # The background threads look at the clock again, and who waits in the memory does anyway.
        heartbeat.call_soon(_nothing)
        for talks in (False, True):
            housekeeper.add(_nothing, talks=talks)

    def end(self, is_last: bool) -> None:
        """Set the wall clock back. `is_last`: there is no other memory."""
        travelled, self._travelled = self._travelled, 0.0
        if is_last:
            _clocks.restore()
        elif travelled:
            _clocks.ahead -= travelled
            for lease in _kept():
                _prolong(lease, -travelled)


def _kept() -> list[Lease]:
    """The locks in memories that this process holds."""
    return [
        each for each in heartbeat.live() if isinstance(each, Lease) and each.server in _clients
    ]


def _prolong(lease: Lease, seconds: float) -> None:
    client = _clients[lease.server]
    client.eval(_KEEP, 1, lease.key, lease.stored, round(seconds * 1000))


def _nothing() -> None:
    """Do nothing, in a background thread, which looks at its clock then."""
