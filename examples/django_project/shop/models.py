"""A product, and its entry in the search index."""

from django.db import models


class Product(models.Model):
    name = models.CharField(max_length=100)
    price = models.IntegerField()

    def __str__(self):
        return self.name


class Entry(models.Model):
    """A product in the index."""

    product = models.OneToOneField(Product, on_delete=models.CASCADE, primary_key=True)
    price = models.IntegerField(default=0)
    times = models.IntegerField(default=0)
