"""`transaction_lock` in the tests of a Django project, as `manage.py test` runs them.

Its databases are in files: other threads and processes read what has been committed.
"""

from __future__ import annotations

import asyncio
import threading
import uuid

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connection, connections, transaction
from django.http import HttpResponse
from django.test import Client, TestCase, TransactionTestCase
from django.urls import path
from shop.celery import app
from shop.models import Product

from celery_redislock import LockLost, RedisLock
from celery_redislock.django import transaction_lock
from tests.behaviour.apps.transactions_settings import ALIASES
from tests.support.waiting import eventually


class Left(Exception):
    """Ends a block."""


def price(request, end):
    """A view in a transaction. The lock's block ends before it."""
    with transaction_lock(request.GET["name"]):
        Product.objects.update(price=2)
    assert RedisLock(app, request.GET["name"]).locked()
    if end == "raise":
        raise Left
    if end == "set_rollback":
        transaction.set_rollback(True)
    return HttpResponse(status=204)


urlpatterns = [path("price/<str:end>", price)]


class Names:
    def setUp(self):
        self.name = f"transactions:{uuid.uuid4()}"
        Product.objects.create(name="lamp", price=1)

    @property
    def locked(self):
        return RedisLock(app, self.name).locked()

    def prices(self):
        return [each.price for each in Product.objects.all()]

    def test_a_request_holds_it_until_its_transaction_has_ended(self):
        client = Client(raise_request_exception=False)
        for end, status, left in (("raise", 500, 1), ("set_rollback", 204, 1), ("commit", 204, 2)):
            answer = client.get(f"/price/{end}", {"name": self.name})
            assert answer.status_code == status, end
            assert not self.locked, end
            assert self.prices() == [left], end


class Committed(Names, TransactionTestCase):
    databases = ALIASES

    def test_without_a_transaction_it_is_released_as_the_block_ends(self):
        kind = type(connections["default"])
        with transaction_lock(self.name) as lock:
            assert self.locked
            assert lock.fence > 0
        assert not self.locked
        with pytest.raises(Left), transaction_lock(self.name):
            raise Left
        assert not self.locked
        with transaction_lock(self.name), transaction.atomic():
            Product.objects.update(price=2)
        assert not self.locked
        assert type(connections["default"]) is kind, "nothing is left behind"

    def test_it_is_released_when_the_outermost_block_has_committed(self):
        seen = []
        with transaction.atomic():
            transaction.on_commit(lambda: seen.append(self.locked))
            with transaction.atomic():
                with transaction.atomic(savepoint=False), transaction_lock(self.name):
                    Product.objects.update(price=2)
                assert self.locked
            assert self.locked
        assert seen == [False], "what is sent on commit finds the lock free"
        assert not self.locked

    def test_it_is_released_when_the_transaction_is_rolled_back(self):
        with pytest.raises(Left), transaction.atomic():
            with transaction_lock(self.name):
                Product.objects.update(price=2)
            assert self.locked
            raise Left
        assert not self.locked
        with pytest.raises(Left), transaction.atomic(), transaction_lock(self.name):
            raise Left
        assert not self.locked
        with transaction.atomic():
            with transaction_lock(self.name):
                Product.objects.update(price=2)
            transaction.set_rollback(True)
            assert self.locked
        assert not self.locked
        assert self.prices() == [1]

    def test_a_savepoint_that_is_rolled_back_does_not_release_it(self):
        with transaction.atomic():
            with pytest.raises(Left), transaction.atomic():
                with transaction_lock(self.name):
                    Product.objects.update(price=2)
                raise Left
            assert self.locked
            sid = transaction.savepoint()
            transaction.savepoint_rollback(sid)
            assert self.locked
            Product.objects.update(price=3)
        assert not self.locked
        assert self.prices() == [3]

    def test_a_durable_block_and_a_decorated_function_release_it(self):
        @transaction.atomic(durable=True)
        def change():
            with transaction_lock(self.name):
                Product.objects.update(price=2)
            return self.locked

        assert change()
        assert not self.locked

    def test_a_callback_that_fails_and_a_commit_that_fails_release_it(self):
        def fails():
            raise Left

        with pytest.raises(Left), transaction.atomic():
            transaction.on_commit(fails)
            with transaction_lock(self.name):
                Product.objects.update(price=2)
        assert not self.locked

        class Refuses:
            def __init__(self, inner):
                self.inner = inner

            def __getattr__(self, attribute):
                return getattr(self.inner, attribute)

            def commit(self):
                raise DatabaseError("database is locked")

        with pytest.raises(DatabaseError), transaction.atomic():
            with transaction_lock(self.name):
                Product.objects.update(price=3)
            connection.connection = Refuses(connection.connection)
            assert self.locked
        connection.connection = connection.connection.inner
        assert not self.locked
        assert self.prices() == [2]

    def test_a_connection_that_is_closed_releases_it(self):
        with pytest.raises(Left), transaction.atomic():
            with transaction_lock(self.name):
                Product.objects.update(price=2)
            connection.close()
            assert not self.locked
            with transaction_lock(self.name):
                pass
            assert not self.locked
            raise Left
        assert self.prices() == [1]

    def test_coroutines_which_may_share_a_connection_are_refused(self):
        async def enter():
            with transaction_lock(self.name):
                pytest.fail("the lock was taken")

        with pytest.raises(SynchronousOnlyOperation, match="transaction_lock cannot be used"):
            asyncio.run(enter())

    def test_without_autocommit_the_next_commit_or_rollback_releases_it(self):
        transaction.set_autocommit(False)
        try:
            for end in (transaction.commit, transaction.rollback):
                with transaction_lock(self.name):
                    Product.objects.update(price=2)
                with transaction.atomic():
                    Product.objects.update(price=4)
                assert self.locked
                end()
                assert not self.locked
            with transaction_lock(self.name):
                Product.objects.update(price=5)
        finally:
            transaction.set_autocommit(True)
        assert not self.locked

    def test_a_transaction_has_its_lock_once(self):
        with transaction.atomic():
            with transaction_lock(self.name) as first, transaction_lock(self.name) as second:
                assert first is second
            with transaction_lock(self.name, timeout=0) as third:
                assert third is first
            with transaction_lock(f"{self.name}:other"):
                pass
            assert self.locked
        assert not self.locked
        assert not RedisLock(app, f"{self.name}:other").locked()

    def test_each_database_has_its_own_transaction(self):
        other = f"{self.name}:other"
        with transaction.atomic():
            with transaction.atomic(using="other"):
                with transaction_lock(self.name), transaction_lock(other, using="other"):
                    pass
                assert RedisLock(app, other).locked()
            assert not RedisLock(app, other).locked()
            assert self.locked
        assert not self.locked

    def test_transactions_of_several_databases_have_one_lock(self):
        """A thread does not wait for itself, and the lock is free after the last of them."""
        for outer, inner in (("default", "other"), ("other", "default")):
            with transaction.atomic(outer), transaction_lock(self.name, outer) as first:
                with transaction.atomic(inner), transaction_lock(self.name, inner, timeout=0) as it:
                    assert it is first
                assert self.locked, "the outer transaction is open"
            assert not self.locked
        with transaction.atomic(using="other"):
            with transaction_lock(self.name), transaction_lock(self.name, "other", timeout=0):
                pass
            assert self.locked, "the only transaction is open"
        assert not self.locked

    def test_a_lost_lock_commits_in_no_database(self):
        with pytest.raises(LockLost), transaction.atomic():
            with pytest.raises(LockLost), transaction.atomic(using="other"):
                with (
                    transaction_lock(self.name, ttl=3) as lock,
                    transaction_lock(self.name, "other"),
                ):
                    Product.objects.update(price=2)
                    Product.objects.using("other").create(name="desk", price=1)
                thief = self.steal(lock)
            thief.release()
        assert self.prices() == [1]
        assert not Product.objects.using("other").exists()

    def test_who_waits_for_it_reads_what_was_committed(self):
        name, seen, waits = self.name, [], threading.Event()

        def wait():
            with transaction.atomic():
                waits.set()
                with transaction_lock(name, timeout=60):
                    seen.extend(each.price for each in Product.objects.all())
            connections.close_all()

        thread = threading.Thread(target=wait)
        with transaction.atomic():
            with transaction_lock(name):
                Product.objects.update(price=2)
            thread.start()
            assert waits.wait(60)
            assert seen == []
        thread.join(60)
        assert seen == [2]

    def test_a_lost_lock_does_not_commit(self):
        with pytest.raises(LockLost), transaction.atomic():
            with transaction_lock(self.name, ttl=3) as lock:
                Product.objects.update(price=2)
            thief = self.steal(lock)
        assert thief.locked(), "the next holder keeps it"
        thief.release()
        assert self.prices() == [1]
        with transaction.atomic():
            with transaction_lock(self.name, ttl=3) as lock:
                pass
            thief = self.steal(lock)
            with pytest.raises(LockLost), transaction_lock(self.name):
                pass
            thief.release()
            transaction.set_rollback(True)
        with transaction_lock(self.name):
            pass

    def test_a_lock_that_is_lost_in_its_block_ends_the_block(self):
        kind = type(connections["default"])
        with pytest.raises(LockLost), transaction_lock(self.name, ttl=3) as lock:
            thief = self.steal(lock)
        thief.release()
        with pytest.raises(LockLost), transaction.atomic():
            with pytest.raises(LockLost), transaction_lock(self.name, ttl=3) as lock:
                Product.objects.update(price=2)
                thief = self.steal(lock)
            thief.release()
        with pytest.raises(Left), transaction_lock(self.name, ttl=3) as lock:
            thief = self.steal(lock)
            raise Left
        thief.release()
        assert self.prices() == [1]
        assert type(connections["default"]) is kind

    def steal(self, lock):
        """Another run takes the lock, and its holder learns so."""
        from celery_redislock.operations import break_locks, list_locks

        break_locks(app, [each for each in list_locks(app) if each.key == lock.key])
        thief = RedisLock(app, self.name)
        assert thief.acquire(10)
        eventually(lambda: lock.lost, "it is known to be lost", 30)
        return thief


class NeverCommitted(Names, TestCase):
    """In a TestCase, whose own blocks never commit."""

    databases = ALIASES

    def test_it_is_released_as_it_would_be_without_the_test_case(self):
        with transaction_lock(self.name):
            assert self.locked
        assert not self.locked
        with transaction.atomic():
            with transaction.atomic(), transaction_lock(self.name):
                pass
            assert self.locked
        assert not self.locked
        with transaction.atomic(durable=True):
            with transaction_lock(self.name):
                pass
            assert self.locked
        assert not self.locked
        with pytest.raises(Left), transaction.atomic():
            with transaction_lock(self.name):
                pass
            raise Left
        assert not self.locked

    def test_callbacks_find_it_free(self):
        seen = []
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            transaction.on_commit(lambda: seen.append(self.locked))
            with transaction_lock(self.name):
                pass
        assert seen == [False]

    def test_a_lost_lock_rolls_its_block_back(self):
        with pytest.raises(LockLost), transaction.atomic():
            with transaction_lock(self.name, ttl=3) as lock:
                Product.objects.update(price=2)
            thief = Committed.steal(self, lock)
        thief.release()
        assert self.prices() == [1]
