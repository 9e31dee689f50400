"""Views that send tasks, or hold a lock themselves."""

from django.db import transaction
from django.http import JsonResponse
from django.views.decorators.http import require_POST

from celery_redislock.django import transaction_lock

from .models import Product
from .tasks import index_product


@require_POST
def set_price(request, product_id):
    with transaction.atomic():
        Product.objects.filter(pk=product_id).update(price=int(request.POST["price"]))
        # Not before: a worker would find the old price, or no product.
        index_product.delay_on_commit(product_id)
    return JsonResponse({"product": product_id}, status=202)


@transaction.atomic
def reduce_price(product_id, by):
    with transaction_lock(f"product:{product_id}", timeout=1):
        product = Product.objects.get(pk=product_id)
        product.price -= by
        product.save()
