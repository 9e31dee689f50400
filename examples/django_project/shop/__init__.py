"""A Django project whose tasks have locks. See docs/django.md.

From this folder, with a Redis at REDIS_URL (default: redis://localhost:6379/0):

    python manage.py migrate --run-syncdb
    celery -A shop worker -c 2
    python manage.py createsuperuser
    uvicorn shop.asgi:application
"""

from .celery import app as celery_app

__all__ = ["celery_app"]
