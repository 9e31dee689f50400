"""The differences that may be, each with its reason."""

from __future__ import annotations

from .compare import Named

_CANVAS = "t/integration/test_canvas.py::"
#: Tests that send a task several times at once with equal arguments: real duplicates, of which
#: `Skip` lets one run. Each counts only if a duplicate was skipped meanwhile.
_EQUAL_CALLS = (
    "t/integration/test_group_chains.py::test_group_chains::*",
    "t/integration/test_tasks.py::test_tasks::test_revoked_by_headers_complex_canvas",
    "t/integration/test_tasks.py::test_tasks::test_unicode_task",
    f"{_CANVAS}test_chain::test_chain_of_*",
    f"{_CANVAS}test_chain::test_chain_children_with_callbacks",
    f"{_CANVAS}test_chain::test_group_in_center_of_chain",
    f"{_CANVAS}test_chain::test_nested_chain_group_*",
    f"{_CANVAS}test_chain::test_replace_with_chain_that_contains_a_group",
    f"{_CANVAS}test_chain::test_upgrade_to_chord_inside_chains",
    f"{_CANVAS}test_chord::test_chain_to_a_chord_with_large_header",
    f"{_CANVAS}test_chord::test_chord_in_chain_with_args",
    f"{_CANVAS}test_chord::test_chord_in_chords_with_chains",
    f"{_CANVAS}test_chord::test_*abling_flag_allow_error_cb_on_chord_header*",
    f"{_CANVAS}test_chord::test_*errback_called_by_chord_from_group_fail_multiple*",
    f"{_CANVAS}test_chord::test_flag_allow_error_cb_on_chord_header_on_upgraded_chord",
    f"{_CANVAS}test_chord::test_large_header",
    f"{_CANVAS}test_chord::test_link_option_on_group_body_runs_once",
    f"{_CANVAS}test_chord::test_nested_chord_group_chain_group_tail",
    f"{_CANVAS}test_chord::test_simple_chord_with_a_delay_in_group_save",
    f"{_CANVAS}test_chord::test_upgraded_chord_link_error_with_header_errback_enabled*",
    f"{_CANVAS}test_group::test_errback_called_by_group_fail_multiple",
    f"{_CANVAS}test_group::test_group_children_with_*backs",
    f"{_CANVAS}test_group::test_group_lone",
    f"{_CANVAS}test_group::test_nested_group_*",
    f"{_CANVAS}test_group::test_task_replace_with_group_preserves_group_order",
    f"{_CANVAS}test_stamping_mechanism::test_stamping_example_canvas",
)
CELERY: tuple[Named, ...] = (
    *(
        Named(test, "it sends equal calls at once, and all but one are skipped", ("skipped",))
        for test in _EQUAL_CALLS
    ),
    Named(
        f"{_CANVAS}test_chord::test_mutable_errback_called_by_chord_from_group_fail_multiple_*",
        "42 equal calls run one after another, and it gives all but the first a tenth of a second",
        ("queued",),
    ),
    Named(
        "t/integration/test_tasks.py::test_tasks::test_expired",
        "it fills all slots with equal calls, which leave room",
        ("queued", "skipped"),
    ),
    Named(
        "t/unit/tasks/test_trace.py::test_trace::test_outside_body_error",
        "its mock is no tracer of Celery's, and we refuse to run a body under an unknown one",
    ),
    Named(
        "t/unit/worker/test_strategy.py::test_*::test_when_logging_disabled",
        "its event dispatcher is a mock, which we cannot ask, and we say so",
    ),
    Named(
        "t/unit/worker/test_request.py::test_Request::"
        "test_on_hard_timeout_clears_synthetic_traceback",
        "it runs one message twice: the second is a copy of one that has run, and ends",
        ("already done",),
    ),
)
