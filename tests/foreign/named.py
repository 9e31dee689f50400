"""The differences that may be, each with its reason."""

from __future__ import annotations

from .compare import Named

#: Tests that send a task again with the same arguments while it runs or waits, and want two runs.
_STRATEGY = "t/unit/worker/test_strategy.py::test_*::test_when_logging_disabled"
CELERY: tuple[Named, ...] = (
    Named(
        "t/unit/tasks/test_trace.py::test_trace::test_outside_body_error",
        "its mock is no tracer of Celery's, and we refuse to run a body under an unknown one",
    ),
    Named(
        "t/unit/app/test_control.py::test_*_implements_all_commands",
        "it wants a method of Celery's for each remote control command, also for ours",
    ),
    Named(_STRATEGY, "its event dispatcher is a mock, which we cannot ask, and we say so"),
    Named(
        "t/unit/worker/test_request.py::test_Request::"
        "test_on_hard_timeout_clears_synthetic_traceback",
        "it runs one message twice: the second is a copy of one that has run, and ends",
        met="already done",
    ),
)

_VALUE = "the lock's value is JSON that holds the token, and the token is never the caller's"
_TTL = "a lock always has a ttl: 30 s unless another is given, and a heartbeat"
_EXTEND = "`extend` sets the lock's life to a whole ttl, and does not add to it"
_POLLING = "the test counts the sleeps of a loop that polls; a release wakes ours"
REDIS_PY = tuple(
    Named(f"*::TestLock::{test}{params}", reason)
    for test, reason in {
        "test_lock": f"{_VALUE}; {_TTL}",
        "test_lock_token": _VALUE,
        "test_lock_token_thread_local_false": _VALUE,
        "test_context_manager": _VALUE,
        "test_blocking_timeout": _POLLING,
        "test_context_manager_blocking_timeout": _POLLING,
        "test_extend_lock": _EXTEND,
        "test_extend_lock_float": _EXTEND,
        "test_extending_lock_with_no_timeout_raises_error": _TTL,
        "test_reacquiring_lock_with_no_timeout_raises_error": _TTL,
        "test_context_manager_reacquiring_lock_with_no_timeout_raises_error": _TTL,
    }.items()
    for params in ("", "[*]")
)
