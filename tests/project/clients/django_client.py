"""Asks the Django project of examples/ for new prices. Prints how it was answered, as JSON."""

from __future__ import annotations

import contextlib
import json
import sys

import django
from django.db import transaction
from django.test import Client

django.setup()

from shop.models import Product  # noqa: E402  Django wants to be set up first
from shop.tasks import index_product  # noqa: E402

product = Product.objects.create(name="lamp", price=1)
client = Client()
answers = [client.post(f"/products/{product.pk}/price", {"price": price}) for price in (2, 3, 4)]
holder = index_product.lock_holder(product.pk)
with contextlib.suppress(ZeroDivisionError), transaction.atomic():
    Product.objects.filter(pk=product.pk).update(price=5)
    index_product.delay_on_commit(product.pk + 1)
    raise ZeroDivisionError
json.dump(
    {
        "product": product.pk,
        "statuses": [answer.status_code for answer in answers],
        "queued": holder.queued,
        "price": Product.objects.get(pk=product.pk).price,
    },
    sys.stdout,
)
