"""Names the tasks that waited in Redis, and that a lock server forgot which came back empty.

The broker does not know them any more: they stay PENDING. So a worker remembers the tasks that it
has put into rooms while they are there. It asks for a few at a time, and forgets those that have
left, unless the server was away meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from celery.app.task import Context

from ..app.housekeeper import Chore, housekeeper
from ..app.outcomes import level_in_burst
from ..app.results import is_ready, proves_nothing
from ..protocol.claims import Claim
from ..protocol.exchange import UNKNOWN_TTL
from ..protocol.keys import keys_of_lock_id
from ..protocol.log import logger
from ..protocol.platform import at_fork
from ..protocol.rooms import goes_on_elsewhere
from ..protocol.tokens import new_token
from ..servers.server import Server

#: Seconds between looks, and how many tasks one look asks for.
LOOK_EVERY: Final = 2.0
AT_ONCE: Final = 50
#: How many tasks are remembered. Of more than these, the oldest are not named.
MOST: Final = 1000
#: Seconds after an outage until those that run have taken their locks again.
RETAKEN: Final = 3.0
IN_A_LINE: Final = 50


class Parked(NamedTuple):
    """A task in a waiting room of this server. The app's may be another one by now."""

    task: Any
    server: Server
    claim: Claim
    ignores_result: bool | None

    def __str__(self) -> str:
        return f"{self.task.name}[{self.claim.task_id}]"

    @property
    def has_ended(self) -> bool:
        """Whether a result of it is stored; False if that cannot be known."""
        request = Context(ignore_result=self.ignores_result)
        return not proves_nothing(self.task, request) and is_ready(self.task, self.claim.task_id)


class ParkedTasks:
    """The tasks that this worker has put into rooms."""

    def __init__(self) -> None:
        self._forget()
        at_fork(after_in_child=self._forget)
        self._chore = Chore(self._look, lambda: bool(self._tasks), LOOK_EVERY)

    def _forget(self) -> None:
        self._tasks: deque[Parked] = deque(maxlen=MOST)
        #: The outages that are known, by the servers that had them.
        self._outages: dict[Any, Any] = {}

    def add(self, request: Any, lock_id: str, attempt: tuple[str, int, int]) -> None:
        """Remember a task that was put into the room of this lock. See `attempt_of`."""
        task, locks = request.task, request.task.app_locks
        keys, server = keys_of_lock_id(locks.prefix, lock_id), locks.server
        claim = Claim(keys, new_token(), UNKNOWN_TTL, "", *attempt, task=task.name)
        self._outages.setdefault(server, server.outage)
        self._tasks.append(Parked(task, server, claim, request.request_dict.get("ignore_result")))
        self._chore.begin(after=LOOK_EVERY)

    def _look(self) -> None:
        asked = [self._tasks.popleft() for _ in range(min(AT_ONCE, len(self._tasks)))]
        try:
            there = _that_go_on(asked)
            known, self._outages = self._outages, {s: s.outage for s in self._outages}
        except BaseException:
            self._tasks.extendleft(reversed(asked))
            raise
        if known == self._outages:
            self._tasks.extend(there)
            return
        left = [*asked, *self._tasks]
        self._tasks.clear()
        housekeeper.add(partial(self._name, left), after=RETAKEN, talks=True)

    def _name(self, tasks: list[Parked]) -> None:
        """Name those that an outage made the server forget."""
        there = _that_go_on(tasks)
        ids = {id(each) for each in there}
        gone = [each for each in tasks if id(each) not in ids and not each.has_ended]
        self._tasks.extend(there)
        self._chore.begin(after=LOOK_EVERY)
        for begin in range(0, len(gone), IN_A_LINE):
            names = ", ".join(map(str, gone[begin : begin + IN_A_LINE]))
            logger.log(
                level_in_burst(),
                "redislock: the lock server was away, and has forgotten %d tasks that waited there."
                " They will not run, unless their messages are on their way: %s",
                len(gone), names,
            )  # fmt: skip


def _that_go_on(tasks: Sequence[Parked]) -> list[Parked]:
    """Those of these tasks that are in their rooms, or run."""
    found: list[Parked] = []
    for server in dict.fromkeys(each.server for each in tasks):
        there = [each for each in tasks if each.server is server]
        asked = [goes_on_elsewhere(each.claim, ()) for each in there]
        commands = [command for query in asked for command in query.commands]
        replies = iter(server.replies(commands, UNKNOWN_TTL, allows_wrong_type=True))
        for each, query in zip(there, asked, strict=True):
            if query.read([next(replies) for _ in query.commands]):
                found.append(each)
    return found


parked_tasks: Final = ParkedTasks()
