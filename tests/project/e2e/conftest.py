"""Fixtures of the tests of containers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.compose import Stack, docker, everything


class Neighbour:
    """A stack of another checkout, with other code, that somebody runs meanwhile."""

    CODE = "# The code of another checkout.\n"

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        with (stack.folder / "examples/beat_job.py").open("a", encoding="utf-8") as job:
            job.write(self.CODE)
        stack("up", "--build", "--detach", "--wait", "worker-1")
        self.before, self.had = self.look(), everything()

    def look(self) -> dict[str, str]:
        """Each of its containers, since when it runs, its image, and its code."""
        ids = self.stack("ps", "--all", "--quiet", "--no-trunc").split()
        form = "{{.Name}} {{.State.StartedAt}} {{.Image}} {{.RestartCount}}"
        found = {each: docker("inspect", "--format", form, each) for each in ids}
        found["code"] = self.stack.execute("worker-1", "cat", "examples/beat_job.py")
        found["image"] = docker("image", "inspect", "--format", "{{.Id}}", self.stack.image)
        return found


@pytest.fixture(scope="session")
def neighbour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Neighbour]:
    stack = Stack.copied(tmp_path_factory.mktemp("neighbour"), "neighbour")
    try:
        yield Neighbour(stack)
    finally:
        stack.remove()
