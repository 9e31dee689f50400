"""Uses the admin of the Django project of examples/. Prints what it shows, as JSON."""

from __future__ import annotations

import contextlib
import html
import json
import re
import sys
from unittest import mock

import django
import redis
from django.test import Client
from django.test.utils import setup_test_environment

django.setup()
setup_test_environment()  # answers have their contexts

from django.contrib.admin.models import LogEntry  # noqa: E402  Django wants to be set up first
from django.contrib.auth.models import Permission, User  # noqa: E402
from shop.admin import ProductAdmin  # noqa: E402
from shop.celery import app  # noqa: E402
from shop.models import Product  # noqa: E402
from shop.tasks import index_product  # noqa: E402

from celery_redislock.operations import list_locks, resume, suspend  # noqa: E402

LIST = "/admin/shop/product/"


@contextlib.contextmanager
def counted():
    """Counts the exchanges with the lock server: what is sent of locks to Redis at once."""
    sent, send = [], redis.Connection.send_packed_command

    def counting(self, command, *args, **kwargs):
        if b"redislock:" in b"".join(command):  # not Celery, which hears of results
            sent.append(command)
        return send(self, command, *args, **kwargs)

    with mock.patch.object(redis.Connection, "send_packed_command", counting):
        yield sent


def column(answer) -> list[str]:
    cells = re.findall(r'<td class="field-lock_holder">(.*?)</td>', answer.content.decode())
    return [html.unescape(each) for each in cells]


def said(answer) -> list[str]:
    return sorted(str(message) for message in answer.context["messages"])


def fields(answer) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    text = answer.content.decode()
    for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="(.*?)"', text):
        found.setdefault(name, []).append(value)
    return found


def user(name: str, *permissions: str, **more) -> Client:
    made = User.objects.create_user(name, password="secret", is_staff=True, **more)
    made.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(made)
    return client


anna = user("anna", is_superuser=True)
viewer = user("viewer", "view_product")
lamp, desk, sofa = (
    Product.objects.create(name=name, price=1) for name in ("<lamp>", "desk", "sofa")
)
out: dict[str, object] = {}

index_product.delay(lamp.pk)
with counted() as asked:
    out["column"] = column(anna.get(f"{LIST}?o=1"))
out["exchanges"] = len(asked)
form = anna.get(f"{LIST}{lamp.pk}/change/").content.decode()
out["field"] = re.findall(r'<div class="readonly">(.*?)</div>', form)
out["new"] = re.findall(
    r'<div class="readonly">(.*?)</div>', anna.get(f"{LIST}add/").content.decode()
)
ProductAdmin.list_editable = ("price",)
out["editable"] = column(anna.get(f"{LIST}?o=1"))
ProductAdmin.list_editable = ()
ProductAdmin.search_fields = ("name",)

rows = {"_selected_action": [lamp.pk, desk.pk], "action": "break_locks"}
confirmation = anna.post(LIST, rows)
out["status"] = confirmation.status_code
out["confirmation"] = sorted(re.findall(r"<li>(.*: .*)</li>", confirmation.content.decode()))
out["still"] = index_product.lock_holder(lamp.pk) is not None
out["offered"] = ["break_locks" in each.get(LIST).content.decode() for each in (anna, viewer)]
viewer.post(LIST, {**rows, **fields(confirmation)})
out["refused"] = index_product.lock_holder(lamp.pk) is not None

# Another message has the lock by the time of the confirmation.
index_product.break_lock(lamp.pk)
index_product.delay(lamp.pk)
out["late"] = said(anna.post(LIST, fields(confirmation), follow=True))
out["late_still"] = index_product.lock_holder(lamp.pk) is not None

confirmation = anna.post(LIST, rows)
out["broken"] = said(anna.post(LIST, fields(confirmation), follow=True))
out["free"] = index_product.lock_holder(lamp.pk) is None
out["log"] = [
    (str(entry.user), entry.object_repr, entry.get_change_message())
    for entry in LogEntry.objects.all()
]
ours = index_product.lock_key_for(lamp.pk)
out["by"] = [each.broken_by for each in list_locks(app) if each.key == ours]

suspend(app, lock=ours, seconds=60, why="moving", by="anna@host", unknown=True)
out["suspended"] = column(anna.get(f"{LIST}?o=1"))
resume(app, lock=ours)

# More rows than Django takes fields.
Product.objects.bulk_create(Product(name=f"many {n}", price=1) for n in range(1100))
many = list(Product.objects.filter(name__startswith="many "))
for each in many[:2]:
    index_product.delay(each.pk)
rows_of_all = {**rows, "_selected_action": [many[0].pk], "select_across": "1"}
confirmation = anna.post(f"{LIST}?q=many", rows_of_all)
Product.objects.create(name="many later", price=1)
answer = anna.post(f"{LIST}?q=many", fields(confirmation), follow=True)
told = said(answer)
out["many"] = (
    answer.status_code,
    len(told),
    sum("Took the lock away" in each for each in told),
    [index_product.lock_holder(each.pk) is None for each in many[:2]],
)
Product.objects.filter(name__startswith="many ").delete()

lock_args, ProductAdmin.lock_args = ProductAdmin.lock_args, lambda self, obj: ()
unfit = anna.get(f"{LIST}?o=1")
out["unfit"] = (unfit.status_code, column(unfit), said(anna.post(LIST, rows, follow=True)))
ProductAdmin.lock_args = lock_args

with mock.patch.object(redis.Connection, "send_packed_command", side_effect=redis.ConnectionError):
    away = anna.get(f"{LIST}?o=1")
    out["away"] = (away.status_code, column(away))
    out["away_action"] = said(anna.post(LIST, rows, follow=True))
json.dump(out, sys.stdout)
