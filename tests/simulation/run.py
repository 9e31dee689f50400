"""Runs courses, each in a fork of a warm interpreter, and makes a failing one smaller."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import gc
import itertools
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator

from . import once, planted, promises, properties, shown, workers  # noqa: F401
from . import plan as plans
from .course import SERVER, Course
from .plan import Plan
from .planting import Fault

#: The most seconds of real time that one course may take.
LONGEST = 120.0


@dataclasses.dataclass
class Told:
    """What is known of a course that has run."""

    plan: Plan
    digest: str
    failures: list[tuple[str, str]]
    story: list[str]
    counts: dict[str, float]

    def __str__(self) -> str:
        return "; ".join(f"{which}: {how}" for which, how in self.failures[:4])


def warm_up() -> None:
    """Prepare this interpreter, from which each course is forked."""
    warnings.simplefilter("ignore")
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger().setLevel(logging.CRITICAL)
    logging.getLogger("celery_redislock").propagate = False
    workers.prepare()
    once.install()
    SERVER.warm_up()
    gc.collect()
    gc.freeze()
    gc.disable()  # else its time decides when what is only weakly referred to is gone


def course_of(plan: Plan, tells_wire: bool = False) -> Told:
    """Run one course, in this process, which has to end with it."""
    course = Course(plan, tells_wire)
    course.run()
    if not any(which == "goes on" for which, _ in course.failures):
        properties.judge(course)
    counts = {
        "courses": 1, "deliveries": sum(map(len, course.met.values())), "switches": course.steps,
        "exchanges": course.server.exchanges, "virtual": course.now,
        "bodies": len(course.runs),
    }  # fmt: skip
    digest = course.digest.hexdigest()[:16]
    return Told(plan, digest, course.failures, course.story, counts)


class Fork:
    """A course in a process of its own: nothing is left of an earlier one."""

    def __init__(self, plan: Plan, tells_wire: bool = False) -> None:
        self.plan = plan
        self._read, write = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            status = 1
            try:
                told = course_of(plan, tells_wire)
                with os.fdopen(write, "wb") as out:
                    pickle.dump(told, out)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write)

    def told(self) -> Told:
        """What is known of it, once it has run."""
        with os.fdopen(self._read, "rb") as into:
            data = into.read() if select.select([into], [], [], LONGEST)[0] else b""
        if not data:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        usage = os.wait4(self._pid, 0)[2]
        if not data:
            return Told(self.plan, "died", [("died", "the interpreter ended")], [], {})
        known: Told = pickle.loads(data)
        known.counts["cpu"] = usage.ru_utime + usage.ru_stime
        return known


def in_a_fork(plan: Plan, tells_wire: bool = False) -> Told:
    """Run one course."""
    return Fork(plan, tells_wire).told()


def side_by_side(plans: Iterable[Plan], jobs: int, tells_wire: bool = False) -> Iterator[Told]:
    """Run courses, so many at once, and tell of them in their order."""
    under_way: collections.deque[Fork] = collections.deque()
    for plan in plans:
        under_way.append(Fork(plan, tells_wire))
        if len(under_way) == jobs:
            yield under_way.popleft().told()
    while under_way:
        yield under_way.popleft().told()


# -- a smaller one ----------------------------------------------------------------------------


def smaller(told: Told) -> Told:
    """A course with fewer events that fails in the same way. Leaving out an event changes what
    comes after it, so each is tried with some schedules.
    """
    which = told.failures[0][0]
    size = max(len(told.plan.events) // 2, 1)
    while size:
        i = 0
        while i < len(events := told.plan.events):
            rest = events[:i] + events[i + size :]
            found = _fails(dataclasses.replace(told.plan, events=rest), which)
            told = found or told
            i += 0 if found else size
        size //= 2
    for name, least in (("workers", 1), ("children", 1), ("children", 2), ("prefetch", 1)):
        if getattr(told.plan, name) > least:
            told = _fails(dataclasses.replace(told.plan, **{name: least}), which) or told
    text = " ".join(map(str, told.plan.events))
    used = tuple(each for each in told.plan.specs if each.name in text)
    return _fails(dataclasses.replace(told.plan, specs=used), which) or told


def _fails(plan: Plan, which: str) -> Told | None:
    for schedule in dict.fromkeys((plan.schedule, 0, 1, 2)):
        told = in_a_fork(dataclasses.replace(plan, schedule=schedule))
        if any(each == which for each, _ in told.failures):
            return told
    return None


# -- the command ------------------------------------------------------------------------------


def main(clock: Callable[[], float]) -> None:
    p = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    p.add_argument("--seed", type=int, help="run one course")
    p.add_argument("--seeds", default="0:100", metavar="A:B", help="run these courses (0:100)")
    p.add_argument("--minutes", type=float, help="run courses from A on, for so long")
    p.add_argument("--new", action="store_true", help="from a seed that each commit has for itself")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="run so many at once (1)")
    p.add_argument("--faults", choices=["yes", "no"], help="with faults, or without")
    p.add_argument("--suspensions", choices=["yes", "no"], help="with suspensions, or without")
    p.add_argument("--with", default="", metavar="A,B", dest="wanted", help="each with these, of "
                   + ", ".join([*plans.MORE_FAULTS, *plans.WINGS]))  # fmt: skip
    p.add_argument("--plain", action="store_true", help="without " + ", ".join(plans.WINGS))
    p.add_argument(
        "--most", type=int, default=0, metavar="N", help="N may fail, which are told (0)"
    )
    p.add_argument("--schedule", type=int, default=0, help="another schedule of the same plan")
    p.add_argument("--trace", action="store_true", help="tell each course's story")
    p.add_argument("--wire", action="store_true", help="with each exchange with the lock server")
    p.add_argument("--smaller", action="store_true", help="make those that fail smaller")
    p.add_argument("--keep", metavar="I,J", help="only these events of the plan")
    p.add_argument("--planted", metavar="FAULT", help="with this one of planted.py's faults")
    p.add_argument("--until", metavar="PROPERTY", help="end when this one fails")
    p.add_argument(
        "--coverage", action="store_true", help="say which pairs no plan draws, and run none"
    )
    p.add_argument("--digests", action="store_true", help="say each course's digest")
    args = p.parse_args()
    if args.coverage:
        sys.exit(_tell_coverage(_plans(args, clock)))
    warm_up()
    total: collections.Counter[str] = collections.Counter()
    failing = []
    for told in side_by_side(_plans(args, clock), args.jobs, args.wire):
        total.update(told.counts)
        seed = told.plan.seed
        if args.digests:
            print(seed, told.digest)
        if told.failures:
            failing.append(seed)
            print(f"seed {seed}: {told}", flush=True)
            if args.until is not None and any(which == args.until for which, _ in told.failures):
                break
            if args.smaller:
                told = smaller(told)
                tell(in_a_fork(told.plan, args.wire))
        if args.trace:
            tell(told)
    print(
        f"{total['courses']:.0f} courses, {len(failing)} fail: {failing}\n"
        f"{total['deliveries']:.0f} deliveries, {total['bodies']:.0f} bodies,"
        f" {total['exchanges']:.0f} exchanges, {total['switches']:.0f} switches,"
        f" {total['virtual'] / 3600:.1f} hours in {total['cpu']:.1f} s of CPU:"
        f" {total['deliveries'] / max(total['cpu'], 0.001):.0f} deliveries a second"
    )
    sys.exit(len(failing) > args.most)


def _plans(args: argparse.Namespace, clock: Callable[[], float]) -> Iterator[Plan]:
    """The plans of the courses that were asked for."""
    first, last = map(int, args.seeds.split(":"))
    if args.new:
        first, last = (_of_this_commit() + each for each in (first, last))
    seeds: Iterable[int] = range(first, last)
    if args.minutes is not None:
        give_up = clock() + 60 * args.minutes
        seeds = itertools.takewhile(lambda seed: clock() < give_up, itertools.count(first))
    if args.seed is not None:
        seeds = [args.seed]
    fault = Fault(()) if args.planted is None else planted.EVERY[args.planted]
    if args.faults is not None:
        fault = fault._replace(faults=args.faults == "yes")
    if args.suspensions is not None:
        fault = fault._replace(suspends=args.suspensions == "yes")
    wanted = tuple(args.wanted.split(",")) + fault.wanted
    fault = fault._replace(wanted=wanted, is_plain=args.plain)
    for seed in seeds:
        plan = plan_for(fault, seed)
        if plan is None:
            continue
        plan = dataclasses.replace(plan, schedule=args.schedule)
        if args.keep is not None:
            kept = [int(each) for each in args.keep.split(",")]
            plan = dataclasses.replace(plan, events=tuple(plan.events[i] for i in kept))
        yield plan


def _tell_coverage(drawn: Iterable[Plan]) -> bool:
    """Say which pairs of a policy, an option and a fault these plans do not have."""
    wanted = plans.all_pairs()
    counts = collections.Counter(pair for plan in drawn for pair in plans.pairs(plan))
    missing = sorted(pair for pair in wanted if not counts[pair])
    least = min((counts[pair], pair) for pair in wanted)
    print(f"{len(wanted)} pairs, {len(missing)} are not drawn: {missing}; the rarest: {least}")
    return bool(missing)


def plan_for(fault: Fault, seed: int) -> Plan | None:
    """The plan of this seed; None if it cannot show the fault."""
    plan = plans.draw(seed, fault.faults, fault.suspends, fault.wanted, fault.is_plain)
    return plan if fault.needs is None or fault.needs(plan) else None


def _of_this_commit() -> int:
    """A seed that is another one for each commit, and the same whenever that is run again."""
    command = ["git", "rev-parse", "HEAD"]
    return int(subprocess.run(command, check=True, capture_output=True).stdout[:7], 16)


def tell(told: Told) -> None:
    """Tell the story of a course."""
    print(told.plan, *(f"  plan {event}" for event in told.plan.events), *told.story, sep="\n")
    print(*(f"  {which}: {how}" for which, how in told.failures), sep="\n", flush=True)
