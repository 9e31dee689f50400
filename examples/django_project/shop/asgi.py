"""Django's views, and the page of locks for its staff. From the folder above:

uvicorn shop.asgi:application --timeout-graceful-shutdown 2
"""

import os

from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django_application = get_asgi_application()  # first: it sets Django up

from celery_redislock.django import locks_page  # noqa: E402
from shop.celery import app  # noqa: E402

application = Starlette(
    routes=[Mount("/locks", locks_page(app)), Mount("/", django_application)],
)
