"""`celery redislock watch` on a terminal: it scrolls, and outlives its server."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios

import pyte
import pytest

from tests.support.looking import ROOT, lock_named, make_app, park, run, take
from tests.support.servers import free_port
from tests.support.waiting import eventually

LINES, COLUMNS = 12, 80
#: The cursor is shown again, on the screen of before.
LEAVE = ("\x1b[?1049l", "\x1b[?25h")


class Terminal:
    """A command on a terminal of its own, and what is on it."""

    def __init__(self, environment, *arguments, term="xterm"):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(theirs)
        command = [sys.executable, "-m", "celery", "-A", "tests.support.tasks", "redislock"]
        self.process = subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            env={**environment, "TERM": term},
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._theirs = theirs
        self.all = ""

    def press(self, keys):
        os.write(self._ours, keys.encode())

    def read(self):
        while select.select([self._ours], [], [], 0)[0]:
            self.all += os.read(self._ours, 65536).decode()
        return self.all

    @property
    def picture(self):
        """What was drawn last, by lines."""
        screen = pyte.Screen(COLUMNS, LINES)
        pyte.Stream(screen).feed(self.read())
        return [line.rstrip() for line in screen.display]

    def shows(self, text):
        eventually(lambda: any(text in line for line in self.picture), f"it shows {text!r}", 60)

    @property
    def is_in_order(self):
        return termios.tcgetattr(self._theirs) == self.before

    def hang_up(self):
        if self._ours is not None:
            os.close(self._ours)
            self._ours = None

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.hang_up()
        os.close(self._theirs)


@pytest.fixture
def open_terminal(conf, label):
    opened = []
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}

    def start(url, *arguments, term="xterm", **more):
        own = {"redislock_url": url, "redislock_prefix": label, **more}
        environment["TEST_CONF"] = json.dumps({**conf, **own})
        opened.append(Terminal(environment, "watch", "--every", "0.2", *arguments, term=term))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def test_it_scrolls_outlives_its_server_and_leaves_the_terminal_in_order(
    own_redis, label, open_terminal
):
    app = make_app(own_redis.url, label)
    for number in range(30):
        take(app, "sync", f"{number:02}", lock_label=f"order {number:02}")
    take(app, "report", "x")
    broker = {"broker_url": f"{own_redis.url}/4"}
    terminal = open_terminal(own_redis.url, "--task", "sync", "--sort", "key", **broker)
    terminal.shows("30 locks, 0 waiting")
    terminal.shows("1-7 of 30 lines")
    first = terminal.picture
    assert len(first) <= LINES
    assert max(map(len, first)) <= COLUMNS
    assert own_redis.url.removeprefix("redis://") in "".join(first)
    assert not terminal.is_in_order, "keys come as they are pressed"

    for keys, lines in (
        ("\x1b[B", "2-8"),
        ("\x1b[6~", "9-15"),
        ("G", "24-30"),
        ("\x1b[A", "23-29"),
    ):
        terminal.press(keys)
        terminal.shows(f"{lines} of 30 lines")

    own_redis.kill()
    terminal.shows("THE LOCK SERVER DOES NOT ANSWER: ")
    terminal.shows("As it was ")
    assert any("order " in line for line in terminal.picture), "the last picture stays"
    terminal.shows("(no events: ")
    own_redis.start()
    eventually(
        lambda: any(line.startswith("0 locks, 0 waiting") for line in terminal.picture),
        "it goes on",
        60,
    )
    assert not any("DOES NOT ANSWER" in line for line in terminal.picture)
    terminal.shows("(no event yet: workers with -E?)")
    with make_app(own_redis.url, "any", **broker) as sends:

        def is_heard():
            with sends.events.default_dispatcher() as events:
                events.send("task-lock-skipped", uuid="x")
            return not any("no event" in line for line in terminal.picture)

        eventually(is_heard, "an event comes")

    terminal.press("q")
    assert terminal.process.wait(60) == 0
    assert terminal.is_in_order
    assert all(each in terminal.read()[-200:] for each in LEAVE), "the screen of before"


def test_keys_filter_sort_and_open_a_lock(redis_server, label, open_terminal):
    app = make_app(redis_server.url, label)
    for number in range(5):
        take(app, "report", f"{number}", lock_label=f"order {number}")
    park(app, "report", "3", "waits")
    terminal = open_terminal(redis_server.url, "--sort", "key")
    terminal.shows("1-5 of 5 lines")
    terminal.press("/order 3")
    terminal.shows("filter: order 3_")
    terminal.shows("order 3")
    assert not any("order 1" in line for line in terminal.picture)
    terminal.press("\x7f4\r")  # another last character
    terminal.shows("filter: order 4 ")
    assert not any("order 3" in line for line in terminal.picture)
    terminal.press("/\x1b")
    terminal.shows("1-5 of 5 lines")
    terminal.press("ss")  # by node, and by how long it is held
    terminal.press("\t")
    eventually(lambda: "\x1b[0;7m" in terminal.read(), "one is chosen", 60)
    terminal.press("/order 3\r\r")
    terminal.shows("task_id      id-of-3")
    terminal.press("G")
    terminal.shows("waiting: 1")
    terminal.press("\x1b")
    terminal.shows("filter: order 3 ")
    terminal.press("\x1b[99~no key of ours\x03")  # Ctrl-C
    assert terminal.process.wait(60) == 0
    assert terminal.is_in_order
    assert all(each in terminal.read()[-200:] for each in LEAVE), "the screen of before"


def test_keys_are_obeyed_while_a_look_is_under_way(own_redis, label, open_terminal):
    app = make_app(own_redis.url, label)
    take(app, "sync", "x")
    terminal = open_terminal(own_redis.url, "--every", "600", broker_url="memory://")
    terminal.shows("1 lock, ")
    own_redis.stop()
    terminal.press("\r")  # the look into this lock hangs
    terminal.shows("sync:v1:")
    terminal.press("\x1b")
    terminal.shows("1-1 of 1 lines")
    terminal.press("/keys")
    terminal.shows("filter: keys_")
    terminal.press("\rq")
    assert terminal.process.wait(60) == 0
    assert terminal.is_in_order


def test_a_dumb_terminal_gets_plain_lines(redis_server, client, label, open_terminal):
    client.set(lock_named(label, "foreign").key, "not ours")
    terminal = open_terminal(redis_server.url, "--times", "2", term="dumb")
    assert terminal.process.wait(60) == 0
    assert terminal.read().count("1 lock, ") == 2
    assert "\x1b" not in terminal.all


def test_it_begins_without_a_server_and_leaves_the_terminal_in_order_when_it_is_ended(
    open_terminal,
):
    terminal = open_terminal(f"redis://127.0.0.1:{free_port()}")
    terminal.shows("THE LOCK SERVER DOES NOT ANSWER: ")
    assert not any("As it was" in line for line in terminal.picture)
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.process.wait(60) == 128 + signal.SIGTERM
    assert terminal.is_in_order
    assert all(each in terminal.read()[-200:] for each in LEAVE), "the screen of before"


def test_it_ends_with_its_terminal(open_terminal):
    terminal = open_terminal(f"redis://127.0.0.1:{free_port()}")
    terminal.shows("THE LOCK SERVER DOES NOT ANSWER: ")
    terminal.hang_up()
    assert terminal.process.wait(60) != 0


def test_in_a_pipe_it_prints_and_says_if_the_server_was_away_at_the_end(redis_server, label):
    app = make_app(redis_server.url, label)
    for number in range(5):
        take(app, "sync", str(number))
    printed = run(app, "watch", "--times", "2", "--every", "0.1", "--limit", "2").output
    assert printed.count("5 locks, 0 waiting") == 2
    assert printed.count("... and 3 more") == 2
    assert "\x1b" not in printed
    assert run(app, "watch", "--times", "1", "--task", "report").output.count("0 locks") == 1
    away = make_app(f"redis://127.0.0.1:{free_port()}", label)
    result = run(away, "watch", "--times", "2", "--every", "0.1")
    assert result.exit_code == 1
    assert result.output.count("THE LOCK SERVER DOES NOT ANSWER: ") == 2
    assert result.output.splitlines()[-1].startswith("Error: the lock server does not answer: ")
