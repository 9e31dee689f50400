"""The example project's settings, with two databases in files and transactions around requests."""

import os

from shop.settings import *  # noqa: F403
from shop.settings import DATABASES

ROOT_URLCONF = "tests.behaviour.apps.django_transactions"
ALIASES = ("default", "other")
DATABASES = {
    alias: {
        **DATABASES["default"],
        "NAME": (path := f"{os.environ['DATABASE']}.{alias}"),
        "TEST": {"NAME": path},
        "ATOMIC_REQUESTS": True,
    }
    for alias in ALIASES
}
DEBUG = False
