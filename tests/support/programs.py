"""Runs short Python programs in processes forked from one that has imported Django, Celery and this
package: importing is most of what they do, and the tests of Django and of the pages run many.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from .template import Template

IMPORTED = (
    # Not `celery.bin`: by that the checks tell that they run in a `celery` command.
    *("celery.app.trace", "celery.backends.redis", "celery.fixups.django"),
    *("celery_redislock.django", "celery_redislock.operations", "celery_redislock.testing"),
    *("django.contrib.admin", "django.core.management", "django.test", "django.urls"),
    *("kombu.transport.memory", "kombu.transport.redis"),
)
_template = functools.cache(lambda: Template(IMPORTED))


def python(*arguments: str, seconds: int = 90) -> subprocess.CompletedProcess[str]:
    """Run `python` with these arguments in the root folder, in the environment of now. What it
    started ends with it.

    Args:
        arguments: of the command line.
        seconds: after which it is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _template().start(*arguments, environment=os.environ, out=out, err=err)
        try:
            status = process.wait(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        said = (each.read_text(encoding="utf-8") for each in (out, err))
        return subprocess.CompletedProcess(arguments, status, *said)
