"""The lock server: a Redis in memory with the package's own scripts. It executes what arrives at
once, on the world's time; `wire` brings it there.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import time
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

from fakeredis import FakeRedis, FakeServer
from fakeredis._helpers import SimpleError
from fakeredis._msgs import FLAG_LEAVE_EMPTY_VAL
from fakeredis._socket import FakeSocket
from fakeredis._socket._resp import convert_to_resp2
from fakeredis.commands_mixins import scripting_mixin
from fakeredis.commands_mixins.scripting_mixin import _convert_redis_arg
from fakeredis.model import Hash, is_write_command
from redis.exceptions import NoPermissionError

from celery_redislock.servers import scripts

from . import baton

#: What a server that is full refuses, of the commands that the package sends: Redis's flag DENYOOM.
NEEDS_MEMORY = frozenset(
    {"set", "mset", "hset", "lpush", "rpush", "lset", "zadd", "incr", "hincrby"}
)
#: Bytes of the longest word that the server takes: Redis's `proto-max-bulk-len`. See `once.LARGE`.
LONGEST_WORD = 64 * 1024
FULL = "OOM command not allowed when used memory > 'maxmemory'."
READ_ONLY = "READONLY You can't write against a read only replica."
#: What commands reply, if their key is not there: most are asked for such a one.
ABSENT: dict[str, Any] = {
    "get": None, "exists": 0, "del": 0, "pttl": -2, "pexpire": 0,
    "hget": None, "hexists": 0, "hdel": 0,
    "lrange": [], "lrem": 0, "llen": 0, "lpop": None,
    "zrangebyscore": [], "zrevrange": [], "zscore": None, "zcard": 0, "zcount": 0,
    "zrem": 0, "zremrangebyscore": 0,
}  # fmt: skip
#: The reads that scripts do most, by the type of what is there.
READS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "get": (bytes, lambda text: text),
    "hget": (Hash, Hash.get),
    "hexists": (Hash, lambda fields, name: int(name in fields)),
}
#: The least and the most seconds after which a replica has a write.
LAG = (0.0002, 0.02)


REFUSED = NoPermissionError("NOPERM this user has no permissions to run the 'info' command")
#: Seconds without a request after which a server that is discreet closes a connection.
IDLE_FOR = 1.0


class _Socket(FakeSocket):
    """fakeredis's executor of commands, with what makes a real server refuse them, and without what
    nobody asks for here: users, transactions, notifications.
    """

    refuses: str | None = None
    #: A script that has written goes on on a full server, as Redis has it.
    _has_written = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands: dict[bytes, tuple[Any, Any]] = {}
        self._runtime = self._get_server_runtime(self._server)
        self._compiled: dict[bytes, Any] = {}

    def answer(self, command: list[bytes]) -> Any:
        """Execute a command of a client."""
        self._db.time = time.time()
        try:
            result = self._run_command(*self._known(command[0]), command[1:], False)
        except SimpleError as exc:
            result = exc
        return self._decode_result(result)

    def _known(self, command: bytes) -> tuple[Any, Any]:
        if command not in self._commands:
            self._commands[command] = self._name_to_func(command.decode().lower())
        return self._commands[command]

    def compile(self, script: bytes) -> Any:
        if script not in self._compiled:
            self._compiled[script] = self._runtime.compile(script)
        return self._compiled[script]

    def _lua_redis_call(self, runtime: Any, names: Any, command: bytes, *args: Any) -> Any:
        as_sent = [arg if type(arg) is bytes else _convert_redis_arg(arg) for arg in args]
        result = self._run_command(*self._known(command), as_sent, True)
        if type(result) is bytes or type(result) is int:
            return result
        return self._convert_redis_result(runtime, result)

    def _run_command(self, func: Any, sig: Any, args: list[Any], from_script: bool) -> Any:
        name = sig.name
        if self.refuses is not None:
            self._refuse(name, from_script)
        item = self._db._dict.get(args[0]) if args else None
        if item is None:
            if name in ABSENT and (len(args) == 1 or name not in ("exists", "del")):
                return ABSENT[name]
        elif name in READS and not self._db.expired(item):
            kind, read = READS[name]
            if type(item.value) is kind:
                return read(item.value, *args[1:])
        items: list[Any] = []
        try:
            found = sig.apply(args, self._db, self.version)
            if len(found) == 1:
                return found[0]
            values, items = found
            result = func(*values)
            if type(result) is not bytes and type(result) is not int:
                result = convert_to_resp2(result)
        except SimpleError as exc:
            result = exc
        for each in items:
            each.writeback(remove_empty_val=FLAG_LEAVE_EMPTY_VAL not in sig.flags)
        return result

    def _refuse(self, name: str, from_script: bool) -> None:
        """Raise an error, if the server refuses this command."""
        if not from_script:
            self._has_written = False
        refused = name in NEEDS_MEMORY if self.refuses == FULL else _writes(name)
        if refused and not self._has_written:
            raise SimpleError(str(self.refuses))
        self._has_written = self._has_written or (from_script and _writes(name))

    def eval(self, script: bytes, numkeys: int, *keys_and_args: bytes) -> Any:
        memory: Any = self._server
        memory.script_cache[_sha(script)] = script
        compiled = self.compile(script)
        memory._lua_current_socket[0] = self
        self._script_resp = 2
        memory._lua_set_keys_argv(
            self._runtime.table_from(keys_and_args[:numkeys]),
            self._runtime.table_from(keys_and_args[numkeys:]),
        )
        try:
            result = compiled()
        except scripting_mixin.LUA_MODULE.LuaError as exc:
            raise SimpleError(f"ERR {exc}") from exc
        finally:
            self._script_resp = None
        return self._convert_lua_result(result, nested=False)


class _Look(FakeRedis):
    """Looks into the server's memory, by the server's clock: by another one, keys would expire."""

    clock: baton.Clock

    def execute_command(self, *args: Any, **options: Any) -> Any:
        before, baton.world.server_clock = baton.world.server_clock, self.clock
        try:
            return super().execute_command(*args, **options)
        finally:
            baton.world.server_clock = before


def script_in(command: list[bytes]) -> str:
    """The name of the script that a command calls, or the command's own."""
    if not command[0].startswith(b"EVAL"):
        return command[0].decode()
    sha = command[1] if command[0] == b"EVALSHA" else _sha(command[1])
    return _names().get(sha, "EVAL")


def arguments_in(command: list[bytes]) -> list[bytes]:
    """The arguments that a command gives to its script."""
    return command[3 + int(command[2]) :]


def is_taken(reply: Any) -> bool:
    """Whether a reply to `acquire` says that the lock was taken."""
    return isinstance(reply, int) or (isinstance(reply, list) and reply[0] == b"acquired")


def in_words(command: list[bytes], reply: Any) -> str:
    """A command and its reply, for a story."""
    words = command[1:]
    if command[0].startswith(b"EVAL"):
        words = [*command[3:4], *arguments_in(command)]
    told = b" ".join(each[:90] for each in words).decode(errors="replace")
    return f"{script_in(command)} {told} -> {str(reply)[:400]}"


@cache
def _names() -> dict[bytes, str]:
    scripts_there = resources.files("celery_redislock").joinpath("scripts").iterdir()
    names = [path.name.removesuffix(".lua") for path in scripts_there]
    return {scripts.sha_of(name).encode(): name for name in names}


@cache
def _writes(name: str) -> bool:
    return is_write_command(name.encode())


@cache
def _sha(script: bytes) -> bytes:
    return hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()


class LockServer:
    """The server.

    Attributes:
        exchanges: how many requests it has executed.
        is_down: it refuses connections.
        stopped_until: until then it answers nothing, and executes what came meanwhile after that.
        is_discreet: it does not tell its id, and closes connections that are idle for `IDLE_FOR`.
        hears: called with each command that is executed, and its reply.
        dies: after how many more commands, and what is done then.
        lag: the least and the most seconds after which its replica has a write; None if it has no
            replica that answers.
        confirms: called with a command, its reply, and whether enough replicas have what it wrote.
    """

    def __init__(self) -> None:
        self.memory = FakeServer()
        self._socket = _Socket(self.memory, 0, client_class=FakeRedis)
        self.look = _Look(server=self.memory, decode_responses=True)
        self.exchanges = 0
        self.is_down = False
        self.stopped_until = 0.0
        self.is_discreet = False
        self.run_id, self.started_at = 1, -3600.0
        self.hears: Callable[[list[bytes], Any], None] | None = None
        #: Blocked links, by the list for which they wait.
        self._blocked: dict[bytes, list[Any]] = {}
        self.links: list[Any] = []
        self.dies: tuple[int, Callable[[], None]] | None = None
        self.clock = self.look.clock = baton.Clock()
        self.lag: tuple[float, float] | None = LAG
        self.confirms: Callable[[list[bytes], Any, bool], None] = lambda command, reply, are: None
        #: What its replica has; None if that has all.
        self._replica: dict[bytes, Any] | None = None

    def warm_up(self) -> None:
        """Compile all scripts, before the courses."""
        runtime = self._socket._runtime
        runtime.execute(b"redis.acl_check_cmd = function() return true end")
        runtime.execute(b"redis.REDIS_VERSION_NUM = 458752")
        runtime.execute(b"setmetatable(_G, {__newindex = function(_, name) error(name) end})")
        scripting_mixin._check_for_lua_globals = lambda *args: None  # which looks at all of them
        for path in resources.files("celery_redislock").joinpath("scripts").iterdir():
            with contextlib.suppress(scripting_mixin.LUA_MODULE.LuaError):  # a part of others
                self._socket.compile(scripts.text_of(path.name.removesuffix(".lua")).encode())
        _names()

    # -- faults ---------------------------------------------------------------------------

    def refuse(self, why: str | None) -> None:
        self._socket.refuses = why

    @property
    def refuses(self) -> str | None:
        return self._socket.refuses

    def restart(self, *, empty: bool) -> None:
        """Come back as another process, which knows no script, and if `empty` nothing at all."""
        self.run_id += 1
        self.started_at = baton.world.now
        self.memory.script_cache.clear()
        if empty:
            for database in self.memory.dbs.values():
                database.clear()
        self.cut_all()

    def leave_behind(self) -> None:
        """From now on its replica gets no more writes."""
        self.lag = None
        self._replica = copy.deepcopy(self.memory.dbs[0]._dict)

    def fail_over(self) -> None:
        """Its replica takes its place. It has run for as long, and knows no script."""
        database, there, self._replica = self.memory.dbs[0], self._replica or {}, None
        self.run_id += 1
        self.lag = LAG
        self.memory.script_cache.clear()
        database.clear()
        database.update(there)
        self.cut_all()

    def cut_all(self) -> None:
        self._blocked.clear()
        links, self.links = self.links, []
        for each in links:
            each.cut()

    # -- requests -------------------------------------------------------------------------

    def execute(self, command: list[bytes]) -> Any:
        """Execute a command that does not block, and return its reply."""
        baton.world.server_clock = self.clock
        try:
            reply = self._execute(command)
        finally:
            baton.world.server_clock = None
        if self.hears is not None:
            self.hears(command, reply)
        return reply

    def _execute(self, command: list[bytes]) -> Any:
        name = command[0].upper()
        if name == b"INFO":
            reply: Any = REFUSED if self.is_discreet else self._info()
        elif name == b"CONFIG":
            reply = [b"maxmemory-policy", b"noeviction"]
        else:
            reply = self._socket.answer(command)
        return reply

    def _info(self) -> bytes:
        uptime = int(baton.world.now - self.started_at)
        return (
            f"redis_version:7.0.15\r\nredis_mode:standalone\r\nrun_id:{self.run_id:040d}\r\n"
            f"uptime_in_seconds:{uptime}\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"
        ).encode()

    def arrive(self, link: Any, commands: list[list[bytes]]) -> None:
        """Execute what has arrived on this link, up to a command that blocks."""
        wait = self.stopped_until - baton.world.now
        if wait > 0:
            baton.world.after(wait, lambda: self.arrive(link, commands))
            return
        if link.is_cut:
            return
        if any(len(word) > LONGEST_WORD for command in commands for word in command):
            link.cut()
            return
        self.exchanges += 1
        link.commands.extend(commands)
        self._go_on(link)

    def _go_on(self, link: Any) -> None:
        while link.commands and not link.is_cut:
            command = link.commands[0]
            if command[0].upper() == b"BLPOP":
                if not self._popped(link, command):
                    return
                continue
            if command[0].upper() == b"WAIT":
                self._wait(link, command)
                return
            link.commands.popleft()
            reply = self.execute(command)
            link.last = command, reply
            if not self._has_died():
                link.replies(reply)
            self._wake_blocked()

    def _wait(self, link: Any, command: list[bytes]) -> None:
        """Answer WAIT, once the replica has what this link wrote, or when its time is over."""
        most = int(command[2]) / 1000
        lag = math.inf if self.lag is None else baton.world.delays.uniform(*self.lag)
        count = int(lag <= most)

        def end() -> None:
            if not link.is_cut:
                link.commands.popleft()
                self.confirms(*link.last, count >= int(command[1]))
                link.replies(count)
                self._go_on(link)

        baton.world.after(min(lag, most), end)

    def _has_died(self) -> bool:
        """Whether it dies before it answers."""
        if self.dies is None:
            return False
        count, die = self.dies
        self.dies = (count - 1, die)
        if count > 0:
            return False
        die()
        return True

    def _popped(self, link: Any, command: list[bytes]) -> bool:
        """Answer a blocking command, if its list has an element or its time is over."""
        key = command[1]
        element = self.execute([b"LPOP", key])
        if element is None and link.blocked_until is None:
            seconds = float(command[2])
            link.blocked_until = baton.world.now + seconds
            baton.world.after(seconds, lambda: self._look_again(link, command))
        if element is None and baton.world.now < link.blocked_until:
            waiting = self._blocked.setdefault(key, [])
            if link not in waiting:
                waiting.append(link)
            return False
        link.blocked_until = None
        link.commands.popleft()
        link.replies(None if element is None else [key, element])
        if link in self._blocked.get(key, ()):
            self._blocked[key].remove(link)
        return True

    def _look_again(self, link: Any, command: list[bytes]) -> None:
        if link.commands and link.commands[0] is command and not link.is_cut:
            self._go_on(link)

    def _wake_blocked(self) -> None:
        if not self._blocked:
            return
        database = self.memory.dbs[0]
        for key, waiting in list(self._blocked.items()):
            waiting[:] = [each for each in waiting if not each.is_cut]
            if waiting and key in database:
                self._go_on(waiting[0])
            if not waiting:
                self._blocked.pop(key, None)
