"""Tasks with locks."""

from celery import shared_task
from django.db.models import F

from celery_redislock.django import LockedTask

from .models import Entry, Product


@shared_task(base=LockedTask, lock_scope="queued", lock_label="product {product_id}")
def index_product(product_id):
    """While a message for the product waits in the queue, no second one is sent."""
    write_entry(product_id)


@shared_task(base=LockedTask, bind=True, lock_key="shop.index", time_limit=600)
def rebuild_index(self):
    """Never runs beside itself, nor beside `manage.py rebuild_index`."""
    for product_id in Product.objects.values_list("pk", flat=True):
        self.lock.ensure()
        write_entry(product_id)


def write_entry(product_id):
    """Write the product's present state in one statement: two runs may do so at once."""
    Entry.objects.get_or_create(product_id=product_id)
    price = Product.objects.filter(pk=product_id).values("price")
    Entry.objects.filter(pk=product_id).update(price=price, times=F("times") + 1)
