"""Least privilege: what docs/operations.md grants is enough."""

from __future__ import annotations

from tests.support.looking import make_app, run
from tests.support.rights import as_user, denials, grant
from tests.support.waiting import eventually


def test_every_policy_works_with_the_rights_of_workers(
    own_redis, start_worker, sender, queue, journal, label
):
    with own_redis.client() as client:
        grant(client, "workers")
        worker = start_worker(
            queues=queue,
            concurrency=8,
            conf={"redislock_url": f"{as_user(own_redis.url, 'workers')}/5"},
        )
        run_twice = (
            *("skip", "defer", "wait", "queued", "coalesced", "replaced_gently", "two_at_once"),
            *("pauses", "unique_skip", "retries", "retries_held", "wait_briefly", "warns"),
        )
        first, results = [], []
        for name in run_twice:
            arguments = [f"{label}-{name}"] + ([] if name.startswith("retries") else [0.6])
            first.append(sender.send_task(name, arguments, queue=queue))
            results.append(sender.send_task(name, arguments, queue=queue))
        for result in (*first, *results):
            eventually(lambda result=result: result.ready(), f"{result.id} ends", 60)
        assert all(
            result.state != "FAILURE" or "Conflict" in repr(result.result) for result in results
        )
        assert "NOPERM" not in worker.log()
        assert denials(client, "workers") == []
        with own_redis.client(db=5) as locks:
            assert locks.keys("redislock:*:done:*") or locks.keys("redislock:*:fence")


def test_tasks_run_though_the_server_closes_idle_connections_and_does_not_tell_which_it_is(
    own_redis, start_worker, sender, queue, journal, label
):
    """Each connection that idles out might be a restart, after which nobody takes a new lock for
    ten seconds: here that would never end.
    """
    with own_redis.client() as client:
        grant(client, "workers", "-info")
        client.config_set("timeout", 1)
        start_worker(queues=queue, conf={"redislock_url": f"{as_user(own_redis.url, 'workers')}/5"})

        def run_one(number):
            result = sender.send_task("skip", [f"{label}-{number}", 0.0], queue=queue)
            eventually(result.ready, f"number {number} has run", 8)
            assert result.state == "SUCCESS"

        def connected():
            return [each for each in client.client_list() if each["user"] == "workers"]

        for number in range(3):
            eventually(lambda: not connected(), "all have idled out")
            run_one(number)


#: A task that waits.
ENTRY = '||{"task":"sync","task_id":"x"}'
#: A lock's value, as docs/how-it-works.md shows it.
VALUE = '{"token":"a","v":2,"task":"sync","task_id":"one","node":"w@one","ttl_ms":60000,"fence":1}'


def test_the_commands_need_only_the_rights_of_those_who_look(own_redis):
    with own_redis.client() as client:
        for user in ("watchers", "operators"):
            grant(client, user)
        looks, breaks = (
            make_app(as_user(own_redis.url, user), "redislock")
            for user in ("watchers", "operators")
        )
        lock = looks.tasks["sync"].lock_key_for("x")

        def held_and_not_taken():
            client.set(lock, VALUE, px=60_000)
            client.rpush(lock.replace(":lock:", ":room:"), "x:0.0")
            client.hset(lock.replace(":lock:", ":entries:"), "x:0.0", ENTRY)
            client.zadd(lock.replace(":lock:", ":sent:"), {"x:0.0": 1})

        for command in (
            ["list"],
            ["show", "sync", "x"],
            ["explain", "sync", "--args", '["x"]'],
            ["watch", "--times", "1"],
            ["doctor"],
        ):
            held_and_not_taken()
            result = run(looks, *command)
            assert "sync" in result.output
            assert result.exit_code == 0, result.output
            assert "worker has taken" in result.output or command[0] == "explain"
        denied = run(looks, "break", "--force", "sync", "x")
        assert denied.exit_code == 1
        assert denied.output.startswith("Error: no rights: ")

        assert run(breaks, "doctor").exit_code == 0
        for command in (
            ["break", "--drop-waiting", "sync", "x"],
            ["drop-waiting", "--all"],
            ["break", "--node", "w@*"],
        ):
            held_and_not_taken()
            done = run(breaks, *command, "--force")
            assert done.exit_code == 0, done.output
        assert denials(client, "operators") == []


def test_a_worker_cannot_touch_what_is_not_under_the_prefix(own_redis, label):
    with own_redis.client() as client:
        grant(client, "workers")
        app = make_app(as_user(own_redis.url, "workers"), label)
        result = run(app, "explain", "sync", "--args", '["x"]')
        assert "no rights" in result.output
