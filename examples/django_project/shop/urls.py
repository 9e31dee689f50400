from django.urls import path

from . import views

urlpatterns = [path("products/<int:product_id>/price", views.set_price)]
