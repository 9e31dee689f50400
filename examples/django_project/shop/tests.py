"""Locks in a test of Django's: in memory, so it needs no Redis and no worker."""

from django.test import TestCase

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
