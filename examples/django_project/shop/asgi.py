"""Django's views, and the page of locks for its staff. From the folder above:

uvicorn shop.asgi:application
"""

import os

from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount

from celery_redislock.django import locks_page
from shop.celery import app

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django_application = get_asgi_application()  # before the page: it sets Django up

application = Starlette(
    routes=[
        Mount("/locks", locks_page(app)),
        Mount("/", django_application),
    ]
)
