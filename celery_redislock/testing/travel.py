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
        self._ahead = 0.0
        self._replaced: list[tuple[ModuleType, str, Any]] = []

    def move(self, seconds: float) -> None:
        """Move the clocks ahead, in all modules that are imported by now; or back."""
        self._ahead += seconds
        ahead = _Time(lambda: time.time() + self._ahead)
        instead = {id(time): ahead, id(clock): lambda: clock() + self._ahead}
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] not in _TRAVEL or name == __name__:
                continue
            for attribute in ("time", "clock"):
                original = vars(module).get(attribute)
                if id(original) in instead:
                    self._replaced.append((module, attribute, original))
                    setattr(module, attribute, instead[id(original)])

    def restore(self) -> None:
        """Give all modules their clocks again."""
        while self._replaced:
            module, name, original = self._replaced.pop()
            setattr(module, name, original)


_clocks: Final = _Clocks()


#: The header of a message that says how far the clocks were ahead when it was sent.
_AHEAD: Final = "redislock_ahead"


class Travel:
    """Moves the clocks ahead, until `end`.

    Args:
        server: the memory.
        client: a client of it.
    """

    def __init__(self, server: Server, client: Any) -> None:
        self._server = server
        self._client = client
        self._travelled = 0.0
        #: The timers of workers in this process, which count down for messages.
        self._timers: weakref.WeakSet[Any] = weakref.WeakSet()
        # With the uid, see `memory_locks`.
        signals.before_task_publish.connect(self._on_publish, dispatch_uid=id(self))
        signals.task_received.connect(self._on_received, dispatch_uid=id(self))

    def _on_publish(self, headers: Any = None, **kwargs: Any) -> None:
        if self._travelled and isinstance(headers, dict):
            headers[_AHEAD] = self._travelled

    def _on_received(self, sender: Any, request: Any, **kwargs: Any) -> None:
        """Shorten a message's countdown by the time that passed while it was on its way."""
        bring_forward(request, self._travelled - request.request_dict.get(_AHEAD, 0.0))
        self._timers.add(sender.timer)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, in which the holders in this process kept their locks."""
        for timer in list(self._timers):
            hasten(timer, seconds)
        for lease in heartbeat.live():
            if isinstance(lease, Lease) and lease.server is self._server:
                self._client.eval(_KEEP, 1, lease.key, lease.stored, round(seconds * 1000))
                lease.deadline += seconds
                lease.next_beat += seconds
        self._travelled += seconds
        _clocks.move(seconds)
        # Who blocks in the memory looks at the clock again, and so do the background threads.
        self._client.set("redislock:time", self._travelled, px=1)
        heartbeat.call_soon(_nothing)
        for talks in (False, True):
            housekeeper.add(_nothing, talks=talks)

    def end(self, is_last: bool) -> None:
        """Set the clocks back. `is_last`: there is no other memory."""
        signals.before_task_publish.disconnect(dispatch_uid=id(self))
        signals.task_received.disconnect(dispatch_uid=id(self))
        _clocks.move(-self._travelled)
        self._travelled = 0.0
        if is_last:
            _clocks.restore()


def _nothing() -> None:
    """Do nothing, in a background thread, which looks at its clock then."""
