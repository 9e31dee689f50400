from django.contrib import admin

from celery_redislock.django import LockAdminMixin

from .models import Product


@admin.register(Product)
class ProductAdmin(LockAdminMixin, admin.ModelAdmin):
    lock_task = "shop.tasks.index_product"
    list_display = ("name", "price", "lock_holder")
    readonly_fields = ("lock_holder",)
