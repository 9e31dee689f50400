"""A view of Django REST framework."""

from rest_framework.decorators import api_view
from rest_framework.response import Response

from .views import reduce_price


@api_view(["POST"])
def reduction(request, product_id):
    reduce_price(product_id, int(request.data["by"]))
    return Response({"product": product_id})
