"""Keys of every kind on real workers: of headers, of injected arguments, of text that is none."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from celery import Celery
from celery.exceptions import WorkerLostError

from celery_redislock import RedisLock, SingletonTask, TaskSkipped
from celery_redislock.operations import holders
from tests.behaviour.apps.keyed import TASKS, job
from tests.behaviour.looking import starts
from tests.support.looking import run
from tests.support.waiting import eventually, never

QUEUE = "keyed"
APP = "tests.behaviour.apps.keyed"
SOLO = "keyed-solo"
LONE = "\ud800"


@pytest.fixture(scope="module", autouse=True)
def worker(start_module_worker):
    return start_module_worker(app=APP, queues=QUEUE, concurrency=4)


def tenants(journal, label):
    """Whose runs began, in order."""
    return [entry.data[0] for entry in journal.read(label, "tenant")]


# -- headers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["skips", "in_text"])
def test_another_tenants_task_runs_and_the_same_tenants_is_a_duplicate(
    send, hold_open, label, name
):
    hold_open(name, headers={"tenant": "a"})
    assert send(name, label, headers={"tenant": "b"}).get(timeout=20) == label
    with pytest.raises(TaskSkipped):
        send(name, label, headers={"tenant": "a"}).get(timeout=20)


def test_a_message_without_the_header_has_a_key_of_its_own_or_does_not_fit(send, hold_open, label):
    hold_open("skips")
    assert send("skips", label, headers={"tenant": "None"}).get(timeout=20) == label
    with pytest.raises(TaskSkipped):
        send("skips", label).get(timeout=20)
    with pytest.raises(ValueError, match="does not fit this call"):
        send("in_text", label).get(timeout=20)
    with pytest.raises(TypeError, match="lock_headers names 'tenant', whose value is a list"):
        send("skips", label, headers={"tenant": ["a"]}).get(timeout=20)


def test_the_main_process_frees_the_lock_of_a_child_that_was_killed(send, label, journal, client):
    killed = send("skips", label, "stand", headers={"tenant": "a"})
    start = eventually(lambda: journal.read(label, "start"), "it runs")[0]
    (_, key) = journal.read(label, "tenant")[0].data
    assert client.exists(key)
    os.kill(start.pid, signal.SIGKILL)
    eventually(lambda: not client.exists(key), "the lock is free", timeout=4)
    with pytest.raises(WorkerLostError):
        killed.get(timeout=20)


@pytest.fixture(scope="module")
def own_task(conf):
    """A task in an app that sends it, and knows its code."""
    app = Celery("keyed", set_as_current=False)
    app.conf.update({k: v for k, v in conf.items() if not k.startswith("test_")})

    def own_task(name):
        options = {"lock_ttl": 6, **TASKS[name], "name": name, "base": SingletonTask}
        return app.task(shared=False, bind=True, **options)(job)

    yield own_task
    gc.collect()  # results that nobody asked for, while there is a server
    app.close()


@pytest.fixture(scope="module")
def is_unique(own_task):
    return own_task("is_unique")


def test_a_sender_reserves_the_lock_of_its_tenant(is_unique, label, journal):
    def send(tenant, *more):
        return is_unique.apply_async((label, *more), queue=QUEUE, headers={"tenant": tenant})

    first = send("a", "stand")
    assert send("a").id == first.id
    assert send("b").get(timeout=20) == label
    eventually(lambda: starts(journal, label, first.id), "it runs")
    of_a = is_unique.with_headers({"tenant": "a"})
    assert of_a.lock_holder(label).task_id == first.id
    assert not of_a.lock_holder(label).queued
    assert is_unique.lock_holder(label) is None
    assert send(None).get(timeout=20) == label
    with pytest.raises(TypeError, match=r"is_unique: lock_headers names 'tenant', which this call"):
        is_unique.delay(label)
    journal.let_go(first.id)
    assert first.get(timeout=20) == label
    eventually(lambda: of_a.lock_holder(label) is None, "the lock is free")
    assert not of_a.break_lock(label)


# -- keys and limits that depend on the call --------------------------------------------------


def test_a_call_for_which_the_key_is_none_runs_without_a_lock_and_says_so(
    send, hold_open, worker, label, journal
):
    hold_open("some")
    with pytest.raises(TaskSkipped):
        send("some", label).get(timeout=20)
    free = send("some", label, 0.0, "needs none")
    assert free.get(timeout=20) == label
    (start,) = [each for each in journal.read(label, "start") if each.task_id == free.id]
    assert start.data["fence"] == 0
    said = f"redislock: some[{free.id}] takes no lock: its lock_key is None for this call"
    assert said in worker.log()


def test_a_call_for_which_the_key_is_none_is_sent_without_a_reservation(own_task, label, journal):
    task = own_task("some_are_unique")
    first = task.apply_async((label, "stand"), queue=QUEUE)
    assert task.apply_async((label,), queue=QUEUE).id == first.id
    others = [task.apply_async((label, 0.0, "needs none"), queue=QUEUE) for _ in range(2)]
    assert [each.get(timeout=20) for each in others] == [label, label]
    journal.let_go(first.id)
    assert first.get(timeout=20) == label
    assert task.lock_holder(label, 0.0, "needs none") is None
    assert not task.break_lock(label, 0.0, "needs none")
    assert holders(task.app, [(task, (label, 0.0, "needs none"))]) == [None]
    with pytest.raises(ValueError, match="lock_key gives None for this call: it takes no lock"):
        task.lock_key_for(label, 0.0, "needs none")
    explained = run(task.app, "explain", "some_are_unique", label, "0.0", "needs none")
    said = "Error: some_are_unique: lock_key gives None for this call: it takes no lock"
    assert said in explained.output.splitlines()


def test_as_many_run_at_once_as_the_calls_own_limit_allows(send, hold_open, label):
    hold_open("by_plan", "gold")
    hold_open("by_plan", "gold")
    hold_open("by_plan", "free")
    for plan in ("gold", "free"):
        with pytest.raises(TaskSkipped):
            send("by_plan", label, 0.0, plan).get(timeout=20)
    with pytest.raises(ValueError, match="lock_limit gives 0 for this call; it must be a whole nu"):
        send("by_plan", label, 0.0, "wrong").get(timeout=20)


def test_those_that_wait_under_a_smaller_limit_keep_their_places_and_are_not_sent_about(
    send, hold_open, worker, journal, label
):
    """A call with a larger limit leaves a look at more slots behind, of which one stays free."""
    first = hold_open("queues_by_plan")
    waiting = []
    for _ in range(2):
        waiting.append(each := send("queues_by_plan", label, 0.0))
        eventually(lambda each=each: f"{each.id}] queued" in worker.log(), "it waits")
    gold = send("queues_by_plan", label, 0.0, "gold")

    def receipts():
        log = worker.log()
        return max(log.count(f"[{each.id}] received") for each in waiting)

    eventually(lambda: receipts() > 1 or gold.ready(), "somebody looked at two slots")
    never(lambda: receipts() > 3, "they are sent about", 2)
    journal.let_go(first.id)
    assert [each.get(timeout=40) for each in (*waiting, gold)] == [label] * 3
    ids = [each.task_id for each in journal.read(label, "start")]
    assert [each for each in ids if each in {waiting[0].id, waiting[1].id}] == [
        each.id for each in waiting
    ]


# -- arguments that others give and take ------------------------------------------------------


@pytest.mark.parametrize("kwargs", [{}, {"trace": "t"}])
@pytest.mark.parametrize("name", ["receives_any", "receives_list", "receives_text"])
def test_a_receiver_of_task_prerun_gives_and_takes_arguments_as_without_a_lock(
    sender, label, name, kwargs
):
    result = sender.send_task(name, (label,), kwargs, queue=QUEUE)
    assert result.get(timeout=20) == "a session"


@pytest.mark.parametrize("name", ["receives_any", "receives_list", "receives_text"])
def test_a_decorator_gives_an_argument(send, label, name):
    assert send(f"decorated_{name}", label).get(timeout=20) == "a session"


@pytest.mark.parametrize("name", ["skips", "receives_any", "receives_list", "receives_text"])
def test_arguments_that_do_not_fit_fail_as_without_a_lock(send, name):
    with pytest.raises(TypeError, match=r"missing .* required positional argument"):
        send(name).get(timeout=20)
    with pytest.raises(TypeError, match=r"takes .* positional arguments|got multiple values"):
        send(name, *range(9)).get(timeout=20)


# -- text that is none, or too much of it -----------------------------------------------------


@pytest.fixture(scope="module")
def solo(start_module_worker):
    return start_module_worker(app=APP, pool="solo", queues=SOLO)


@pytest.fixture
def key_of(conf):
    """The key of the lock with a name."""
    return lambda name: RedisLock(conf["redislock_url"], name).key


def test_half_a_surrogate_pair_is_a_name_like_any_other(solo, sender, key_of, label, journal):
    for name in ("by_text", "waits", "parks"):
        for text in (LONE, "x", LONE):
            sender.send_task(name, (label, 0.0, text), queue=SOLO)
    eventually(lambda: journal.count(label, "end") == 9, "all have run")
    keys = [entry.data[1] for entry in journal.read(label, "tenant")]
    assert set(keys) == {key_of(f"text:{label}:{text}") for text in (LONE, "x")}
    assert "Unrecoverable" not in solo.log()


def test_a_long_name_costs_little_and_excludes_as_any_other(send, worker, label, journal, client):
    text = "x" * 1_000_000
    first = send("parks", label, "stand", text)
    eventually(lambda: starts(journal, label, first.id), "it runs")
    second = send("parks", label, 0.0, text)
    other = send("parks", label, 0.0, f"{text}y")
    eventually(lambda: starts(journal, label, other.id), "another text's runs")
    keys = {entry.data[1] for entry in journal.read(label, "tenant")}
    assert len(keys) == 2
    assert max(map(len, keys)) < 250 + 30, "250 characters, and what comes before the name"
    journal.let_go(first.id)
    eventually(lambda: starts(journal, label, second.id), "it has its turn")
    ours = [line for line in worker.log().splitlines() if "redislock: " in line]
    assert max(map(len, ours)) < 3000


def test_a_header_is_the_same_at_the_sender_and_behind_rabbitmq(
    start_worker, rabbitmq, conf, queue, label, journal
):
    conf = {**conf, "broker_url": rabbitmq.url}
    start_worker(app=APP, pool="solo", queues=queue, conf=conf)
    with Celery("keyed", set_as_current=False) as app:
        app.conf.update({k: v for k, v in conf.items() if not k.startswith("test_")})
        options = {"lock_ttl": 6, **TASKS["is_unique"], "name": "is_unique"}
        task = app.task(shared=False, bind=True, base=SingletonTask, **options)(job)
        tenants = ("größer", 5, 2.5, True, None)
        for tenant in tenants:
            result = task.apply_async((label,), queue=queue, headers={"tenant": tenant})
            assert result.get(timeout=20) == label
        keys = [entry.data[1] for entry in journal.read(label, "tenant")]
        known = [task.with_headers({"tenant": each}).lock_key_for(label) for each in tenants]
        assert keys == known
        assert len({*keys}) == 5
