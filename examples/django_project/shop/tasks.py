"""Tasks with locks."""

from celery import shared_task
from django.db.models import F

from celery_redislock import SingletonTask

from .models import Entry, Product


@shared_task(base=SingletonTask, lock_scope="queued")
def index_product(product_id):
    """While a message for the product waits in the queue, no second one is sent."""
    write_entry(product_id)


@shared_task(base=SingletonTask, bind=True, lock_key="shop.index")
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
