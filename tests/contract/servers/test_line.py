"""`Line`: who may enter, and when."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_redislock.servers.line import Line


async def spin(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def test_they_enter_in_the_order_of_their_arrival() -> None:
    async def main() -> None:
        line, inside, order = Line(2), set(), []

        async def pass_through(number: int) -> None:
            assert await line.enter()
            inside.add(number)
            assert len(inside) <= 2
            order.append(number)
            await spin(number % 3)
            inside.remove(number)
            line.leave()

        await asyncio.gather(*map(pass_through, range(50)))
        assert order == list(range(50))

    asyncio.run(main())


def test_who_waited_long_enough_goes_away() -> None:
    async def main() -> None:
        line = Line()
        assert await line.enter()
        assert not await line.enter(timeout=0)
        assert not await line.enter(timeout=0.01)
        last = asyncio.create_task(line.enter(timeout=5))
        await spin()
        line.leave()
        assert await last
        line.leave()
        assert await line.enter(timeout=0)

    asyncio.run(main())


def test_a_failure_is_told_to_all_who_wait() -> None:
    async def main() -> None:
        line = Line()
        await line.enter()
        waiting = [asyncio.create_task(line.enter()) for _ in range(3)]
        await spin()
        line.fail(OSError("away"))
        assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {
            OSError
        }
        line.leave()
        assert await line.enter(timeout=0)

    asyncio.run(main())


EVENTS = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "cancel", "fail", "spin"]), st.integers(0, 9)),
    max_size=40,
)


@settings(max_examples=30)
@given(room=st.integers(1, 3), events=EVENTS)
def test_nobody_is_forgotten_and_never_are_too_many_inside(room: int, events: Any) -> None:
    async def main() -> None:
        line = Line(room)
        tasks: list[asyncio.Task[bool]] = []
        left: set[asyncio.Task[bool]] = set()

        def inside() -> list[asyncio.Task[bool]]:
            ended = [each for each in tasks if each.done() and not each.cancelled()]
            return [each for each in ended if not each.exception() and each not in left]

        for event, number in [*events, ("spin", 0)]:
            if event == "enter":
                tasks.append(asyncio.create_task(line.enter()))
            elif event == "leave" and inside():
                left.add(inside()[0])
                line.leave()
            elif event == "cancel" and tasks:
                tasks[number % len(tasks)].cancel()
            elif event == "fail":
                line.fail(OSError("away"))
            else:
                await spin()
                assert len(inside()) <= room
                assert len(inside()) == room or all(each.done() for each in tasks)
        while not all(each.done() for each in tasks):
            await spin()
            for each in inside():
                left.add(each)
                line.leave()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
