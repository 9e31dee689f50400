"""The same work as the task, by hand and under the same lock."""

from django.core.management.base import BaseCommand, CommandError

from celery_redislock import LockConflict, RedisLock
from shop.celery import app
from shop.models import Product
from shop.tasks import write_entry


class Command(BaseCommand):
    help = "Rebuild the index here, unless a worker or another command is at it."

    def handle(self, **options):
        try:
            with RedisLock(app, "shop.index", timeout=0) as lock:
                for product_id in Product.objects.values_list("pk", flat=True):
                    lock.ensure()
                    write_entry(product_id)
        except LockConflict as exc:
            raise CommandError(f"the index is being rebuilt: {exc.holder}") from exc
        self.stdout.write("rebuilt")
