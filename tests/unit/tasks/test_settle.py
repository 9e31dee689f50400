from __future__ import annotations

import math
from functools import partial

from celery import Celery

from celery_redislock.app.delivery import Kept
from celery_redislock.tasks import settle
from celery_redislock.tasks.ends import End
from celery_redislock.tasks.settle import settle_beside


def test_what_could_not_be_freed_is_tried_for_as_long_as_the_process_lives(monkeypatch) -> None:
    added: list[float] = []
    monkeypatch.setattr(settle.housekeeper, "add", lambda do, most: added.append(most))
    settle_all = partial(settle_beside, Celery(set_as_current=False), Kept("1|name", "token"))
    settle_all(End.COMES_BACK)
    assert added == [], "it is kept for the message that comes back"
    settle_all(End.CANNOT_RUN)
    assert added == [math.inf]
