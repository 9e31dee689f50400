"""Locks in a test of Django's: in memory, so it needs no Redis and no worker."""

from django.test import TestCase

from celery_redislock import RedisLock
from celery_redislock.testing import assert_skipped, hold_lock, memory_locks

from .celery import app
from .models import Entry, Product
from .tasks import rebuild_index


class IndexTest(TestCase):
    def setUp(self):
        app.conf.task_always_eager = True  # usually CELERY_TASK_ALWAYS_EAGER in the test settings
        self.addCleanup(setattr, app.conf, "task_always_eager", False)

    def test_a_new_price_is_indexed(self):
        lamp = Product.objects.create(name="lamp", price=1)
        with memory_locks(), self.captureOnCommitCallbacks(execute=True):
            self.client.post(f"/products/{lamp.pk}/price", {"price": 5})
        assert Entry.objects.get().price == 5

    def test_a_second_rebuild_is_skipped(self):
        with memory_locks(), hold_lock(rebuild_index):
            assert_skipped(rebuild_index.delay())


class ReductionTest(TestCase):
    def setUp(self):
        self.lamp = Product.objects.create(name="lamp", price=5)
        self.url = f"/api/products/{self.lamp.pk}/reduction"

    def test_a_price_is_reduced_under_its_lock(self):
        with memory_locks():
            assert self.client.post(self.url, {"by": 2}).status_code == 200
        self.lamp.refresh_from_db()
        assert self.lamp.price == 3

    def test_while_another_holds_the_lock_the_answer_is_409(self):
        with memory_locks(), hold_lock(RedisLock(app, f"product:{self.lamp.pk}")):
            answer = self.client.post(self.url, {"by": 2})
        assert answer.status_code == 409
        assert answer.json()["task_id"].startswith("held-by-test")
