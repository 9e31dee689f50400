"""Publishes a task again as it came: same id, same everything."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from celery.exceptions import Reject, SoftTimeLimitExceeded

from ..app.again import message_options, publish_again
from ..app.internals import least_countdown
from ..app.times import seconds_until
from ..errors import LockUnavailable
from ..protocol.log import get_logger
from . import turns
from .attempt import Attempt
from .ends import Deferred, Expired
from .settle import End

logger = get_logger()

#: A countdown is multiplied by a random factor up to this, so that not all come back at once.
SPREAD: Final = 1.25
#: Seconds for which a task is put off at least, however soon the broker redelivers.
SHORTEST: Final = 0.5
#: Seconds until a message that could not be published is given back to the broker. That delivers it
#: again at once, and it may fail again.
BEFORE_REJECTING: Final = 1.0
#: Seconds before its expiry at which a task is put off at the latest, if the server is away.
IN_TIME: Final = 1.0


def put_off(
    attempt: Attempt,
    countdown: float,
    *,
    cause: LockUnavailable | None = None,
    is_alone: bool = True,
    say: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Publish the task again, to be run after a countdown; or end it, if it would expire before.

    A message that expires is dropped by RabbitMQ, and its task would have no result.

    Args:
        attempt: the delivery that ends here.
        countdown: seconds until it is run; up to a quarter is added at random. With a broker that
            redelivers what is not acknowledged in time, at most half of that time: a message that
            sleeps for longer is delivered twice, and each copy would be put off in turn.
        cause: the lock server's error, if the task is put off for that.
        is_alone: no other run of the task is known that may still give it a result.
        say: says that it is put off. Not called if it has expired.

    Raises:
        Deferred: it was published.
        Expired: it has expired, or will have when the countdown is over.
        Reject: it was not published, and the broker still has the message.
        Exception: it was not published, and the broker no longer has the message.
    """
    longest = longest_countdown(attempt.locks.redelivery.after)
    countdown = min(countdown * random.uniform(1.0, SPREAD), longest)
    left = seconds_until(attempt.raw.get("expires"))
    if cause is not None and left is not None and left > 2 * IN_TIME:
        countdown = min(countdown, left - IN_TIME)  # the server may answer any moment
    ahead = countdown if is_alone and not attempt.delivery.redelivered else 0.0
    if left is not None and left < ahead:
        attempt.end = End.TURNED_AWAY
        attempt.mark_done()
        turns.end_expired(attempt.task, attempt.claim.keys, attempt.request, attempt.label)
        raise Expired
    say()
    header = attempt.delivery.next_header(outage=cause is not None)
    # From here on a time limit may end it with its next message already on the way.
    attempt.delivery.copied = True
    try:
        _publish(attempt, countdown, header)
    except SoftTimeLimitExceeded:
        raise
    except Exception as exc:
        logger.exception("redislock: %s could not be published again", attempt)
        # A fanout exchange would give it to all of its queues.
        if attempt.task.acks_late and not attempt.delivery.fanout:
            time.sleep(BEFORE_REJECTING)
            attempt.end = End.COMES_BACK
            raise Reject(exc, requeue=True) from exc
        raise (cause or exc) from exc
    attempt.end = End.PUT_OFF
    raise Deferred


def backoff(attempt: Attempt, tries: int, most: float) -> float:
    """Seconds: 1, 2, 4 and so on with each try, `most` at most."""
    return min(2.0 ** min(tries, 10), most, longest_countdown(attempt.locks.redelivery.after))


def longest_countdown(visible: float | None) -> float:
    """The longest countdown in seconds.

    Args:
        visible: seconds after which the broker redelivers; None if it never does by time.
    """
    return float("inf") if visible is None else max(visible / 2, SHORTEST)


def _publish(attempt: Attempt, countdown: float, header: dict[str, Any]) -> None:
    task, request = attempt.task, attempt.request
    options = message_options(attempt.raw, request, header, attempt.delivery)
    options["countdown"] = max(countdown, least_countdown(task.app))
    publish_again(task.app, task.name, request.args, request.kwargs, options)
