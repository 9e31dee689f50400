"""The waiting rooms of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from redis.exceptions import ResponseError

from ..errors import LockUnavailable
from ..protocol import entries as parked
from ..protocol import holders, wire
from ..protocol.claims import Claim, Full, Look, Older, Parked, Turn, to_ms
from ..protocol.keys import LockKeys
from ..protocol.tokens import new_token
from . import lua
from .connections import pack
from .server import Server, read

#: Seconds after which others store the result of a replaced entry, if nobody has.
ENDED_AGAIN: Final = 5.0
#: Seconds for which a worker that has received a message is assumed to run it. It confirms that.
RECEIVED_FOR: Final = 30.0
#: Entries of a waiting room dropped in one step: about a millisecond of the server's time.
DROP_COUNT: Final = 50


class Rooms:
    """The waiting rooms of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def park(
        self,
        claim: Claim,
        entry: str,
        *,
        kind: str = "",
        limit: int | None = None,
        give_up: float | None = None,
        in_front: bool = False,
        replace: tuple[str, float | None] | None = None,
        arrived: float | None = None,
        age: float = 0.0,
        began: bool = False,
    ) -> Parked | Turn | Full | Older:
        """Put a task that met a held lock into the lock's waiting room.

        Args:
            claim: the task's claim.
            entry: what is needed to publish it again.
            kind: it replaces the waiting entries of the same kind; "" replaces none.
            limit: how many may wait; None for any number.
            give_up: seconds for which it waits; None for ever.
            in_front: before all others, not after them.
            replace: this task, for those that it replaces, as `holders.successor_text`, and the
                seconds after which the holder is ended; None instead of these leaves it alone.
            arrived: Unix time of the task's arrival by the lock server's clock, to tell which of
                two tasks is newer; None if only its age is known.
            age: seconds since a worker received it.
            began: it has run before, so others of its kind are newer: it replaces none, and
                waits before them.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        by, grace = replace or ("", None)
        names = claim.keys
        keys = (
            *(names.lock, names.room, names.entries, names.rooms, names.ended, names.done),
            *(names.deadlines, names.aside, names.waiters, *names.slots),
        )
        arguments = (
            *(claim.entry_id, entry, kind, "" if limit is None else limit),
            *("" if give_up is None else to_ms(give_up), int(in_front), names.mark),
            *(claim.task_id, new_token(), to_ms(claim.done_ttl), to_ms(ENDED_AGAIN)),
            *("" if grace is None else to_ms(grace), by),
            *("" if arrived is None else int(arrived * 1000), int(began), int(age * 1000)),
        )
        reply = self._server.script(claim.ttl, lua.PARK, keys, arguments)
        if reply[0] == b"full":
            return Full()
        if reply[0] == b"older":
            return Older(reply[1].decode(), *(holders.parse(value, None) for value in reply[2:]))
        replaced = dict(wire.entries_of(reply[1]))
        if reply[0] != b"parked":
            return Turn(replaced)
        return Parked(replaced, wire.offered(reply[2]), wire.seconds(reply[3]))

    def look(
        self,
        keys: LockKeys,
        ttl: float,
        declined: str = "",
        aside_after: float | None = None,
        passed_over: Sequence[str] = (),
    ) -> Look:
        """Look after a waiting room: which entry has the turn now, or gives up.

        The entry stays in the room until its task takes the lock, so it is not lost if the caller
        dies.

        Args:
            keys: the lock's keys.
            ttl: seconds, which say how long the server may take to answer.
            declined: the id of an entry that has the turn, and that others must publish.
            aside_after: seconds after which that entry is set aside if nobody does; None for
                never.
            passed_over: the ids of other entries that cannot be published here.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        names = (
            *(keys.lock, keys.room, keys.entries, keys.rooms, keys.ended, keys.deadlines),
            *(keys.aside, keys.waiters, keys.wake, *keys.slots),
        )
        patience = "" if aside_after is None else to_ms(aside_after)
        arguments = (
            *(keys.mark, new_token(), declined),
            *(to_ms(ENDED_AGAIN), patience, to_ms(wire.RESERVE), *passed_over),
        )
        due, offered, aside, flat = self._server.script(ttl, lua.LOOK, names, arguments)
        ended = {entry_id: parked.ended_of(text) for entry_id, text in wire.pairs(flat)}
        return Look(wire.seconds(due), wire.offered(offered), dict(wire.entries_of(aside)), ended)

    def note_received(self, keys: LockKeys, entry_id: str, token: str, ttl: float) -> bool:
        """Note that a worker has the message that was sent for an entry of the room.

        Args:
            keys: the lock's keys.
            entry_id: the entry's id.
            token: of the turn that the message was sent for. An entry that was parked again since
                then waits for another message.
            ttl: seconds, which say how long the server may take to answer.

        Returns:
            False if the entry waits for no such message.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        arguments = (entry_id, to_ms(RECEIVED_FOR), token)
        _, reply = self._server.once(ttl, lua.RECEIVED, (keys.entries,), arguments)
        return bool(reply)

    def put_back(self, keys: LockKeys, entry_id: str, ttl: float) -> bool:
        """Put an entry that was set aside back into the room. False if there is none.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        names = (keys.room, keys.entries, keys.aside, keys.rooms)
        return bool(self._server.script(ttl, lua.PUT_BACK, names, (entry_id, keys.mark)))

    def goes_on_elsewhere(self, claim: Claim, own: Sequence[str]) -> bool:
        """Whether this attempt of its task is in the waiting room, or runs as another delivery.

        Args:
            claim: of the delivery that has ended.
            own: the tokens under which the lock may be kept for that delivery's message or retry.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        keys = claim.keys
        slots = (keys.lock, *keys.slots)
        commands = [("HEXISTS", keys.entries, claim.entry_id), *(("GET", key) for key in slots)]
        waits, *values = self._server.ask(commands, keys.lock, claim.ttl, wrong_type=True)
        found = [holders.decode(value) for value in values if isinstance(value, bytes)]
        attempt = (claim.task_id, claim.attempt, claim.nesting)
        return waits == 1 or any(
            (h.get("task_id"), h.get("attempt", 0), h.get("nesting", 0)) == attempt
            and h.get("token") not in (claim.token, *own)
            for h in found
            if h is not None
        )

    def forget_ended(self, keys: LockKeys, entry_id: str, ttl: float) -> None:
        """The replaced entry has its result.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        self._server.ask([("HDEL", keys.ended, entry_id)], keys.lock, ttl)

    def due_rooms(self, rooms: Sequence[str], ahead: float, ttl: float) -> list[tuple[float, str]]:
        """When to look at which waiting rooms, in order of time.

        Args:
            rooms: the keys to look into.
            ahead: only rooms that are due within this many seconds.
            ttl: seconds, which say how long the server may take to answer.

        Returns:
            For each, the seconds until then and the lock's mark.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        with self._server.connection("", ttl) as connection:
            connection.send_command("TIME")
            seconds, micros = connection.read_response()
            now = int(seconds) * 1000 + int(micros) // 1000
            until = now + int(ahead * 1000)
            commands = [("ZRANGEBYSCORE", key, "-inf", until, "WITHSCORES") for key in rooms]
            connection.send_packed_command([b"".join(map(pack, commands))])
            replies = [read(connection) for _ in rooms]
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise LockUnavailable("", None, str(reply)) from reply
        pairs = (pair for reply in replies for pair in zip(reply[::2], reply[1::2], strict=True))
        return sorted((max(float(due) - now, 0) / 1000, mark.decode()) for mark, due in pairs)

    def take_turn(self, key: str, seconds: float) -> bool:
        """Whether nobody else called this within so many seconds.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        with self._server.connection(key, seconds) as connection:
            connection.send_command("SET", key, "1", "NX", "PX", to_ms(seconds))
            return connection.read_response() is not None

    def drop_waiting(
        self, keys: LockKeys, ttl: float, in_favour_of: str, done_ttl: float
    ) -> dict[str, str]:
        """Drop all entries of the waiting room, and those set aside. Their tasks will not run. The
        caller must store their results; if it does not, a worker does.

        Args:
            keys: the lock's keys.
            ttl: seconds, which say how long the server may take to answer.
            in_favour_of: the id of the task whose duplicates they are, or "".
            done_ttl: seconds for which their messages may still be on their way.

        Returns:
            What was parked, by entry ids.

        Raises:
            LockUnavailable: the server did not answer in time.
        """
        names = (
            *(keys.room, keys.entries, keys.rooms, keys.ended, keys.done),
            *(keys.deadlines, keys.aside),
        )
        arguments = (keys.mark, in_favour_of, to_ms(done_ttl), DROP_COUNT)
        dropped: dict[str, str] = {}
        while True:
            reply = self._server.script(ttl, lua.DROP, names, arguments)
            dropped.update(wire.entries_of(reply))
            if len(reply) < 2 * DROP_COUNT:
                return dropped
