"""What goes on in a thread of its own while a case is played."""

from __future__ import annotations

import threading


class Background:
    """Does something in a thread, until the end of a `with` block, which raises what went wrong."""

    def __init__(self, name: str) -> None:
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._contained, name=name, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _contained(self) -> None:
        try:
            self._run()
        except BaseException as exc:
            self._error = exc

    def _run(self) -> None:
        """Go on until `_end` is set."""
        raise NotImplementedError
