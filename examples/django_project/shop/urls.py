from django.contrib import admin
from django.urls import path

from . import api, views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("products/<int:product_id>/price", views.set_price),
    path("api/products/<int:product_id>/reduction", api.reduction),
]
