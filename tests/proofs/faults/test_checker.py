"""The checker: every rule finds a history that breaks it, and none finds anything in sound ones.

A row is what is shown, the history (see `stories`), and the rules that are broken.
"""

from __future__ import annotations

import pytest

from .checker import NOISE, SOON, STUCK, check
from .stories import TTL, story

#: Later than any bound allows; and the bound of what takes longer.
LATE = SOON + NOISE + 0.1
BOUND = TTL / 3 + SOON + NOISE

# What several rows have in common.
SKIPPED = "state=REVOKED error=TaskSkipped"
SOFT = "error=SoftTimeLimitExceeded pid=100"
RAN = "message a value=run-a; body 1 2 run=run-a of=a"
TWICE = "message a value=second; body 1 2 run=first of=a; body 5 6 run=second of=a"
FORGOT = "given allows=overlap; fault 1.1 1.4"
KILLED = "body 1 run=dead sample=1.1"
LOSER = f"{FORGOT}; body 1 8 run=loser lost=yes; body 1.5 1.9; beat loser 1.45 9.0"
TWO_WAIT = "parked a 1; parked b 2"
WAITED = f"body 0.5 1.5; parked a 1; took a {1.7 + STUCK}"
PAUSED = "body 1 1.2 run=r fence=990 min_hold=1.0"
HELD = (
    "message a 0.5 value=retry; body 1 2 of=a outcome=retried fence=7;"
    "released a 2 fence=7 kept_for_retry=yes; body 5 5.5 of=a run=retry attempt=1 fence=9"
)
HELD_LETS_IN = f"{HELD}; body 3 3.1 fence=8"
#: `old` runs; `new` comes at 2.0, and runs when that has ended.
ENDS = (
    "given acks_late=yes; came old 0.9; replaces old 0.95; took old 1 fence=1;"
    "body 1 2.5 of=old fence=1 lost=yes outcome=raised sample=2.3; signal 1 2.2;"
    "came new 1.95; replaces new 2; took new 2.6 fence=2; body 2.6 3.5 of=new fence=2"
)
OLD_AGAIN = "took old 4 fence=3; body 4 4.5 of=old fence=3"
SIDE_BY_SIDE = (
    "replaces one 1; took one 2; body 2 2.5 of=one;replaces two 1.01; took two 3; body 3 3.5 of=two"
)
REDIS = "given broker=redis acks_late=yes; worker 0 main=10"
#: It was in the queue until just before 2.0, and nowhere since.
POPPED = (
    f"{REDIS}; sent a 1 task=job; place a 1.05 tag=t1 where=queue since=1.0;"
    "place a 2.0 tag=t1 where=nowhere since=1.95"
)


def asks_every(seconds):
    return ";".join(f"asks a {1 + number * seconds}" for number in range(40))


TABLE = f"""
a body that died at once inside of another | body 1 2; body 1.3 | overlap
an attempt that completes twice | {TWICE} | twice
a fence that comes twice | body 1 2 fence=7; body 3 4 fence=7 | fence
one more than the limit | body 1 2 limit=2; body 1.1 2.1 limit=2; body 1.2 1.3 limit=2 | limit
nobody died | {POPPED} | vanished
one that ran and was skipped | {RAN}; conflict a 3 skipped | outcome
one that is skipped for its own lock | message a {SKIPPED}; conflict a 1 skipped holder=a | own
    duplicate
a skip that nobody wrote down | message a {SKIPPED} | result
a worker that crashed | crashed 5 pid=10 status=1 | crashed
an error of a program | message a state=FAILURE; failed a 1 error=TypeError pid=100 | error
a skip over a run, stored | given acks_late=yes; message a {SKIPPED}; body 1 2 run=run-a of=a;
    stored a 2.01 value=run-a; dead 10 2.1; conflict a 5 skipped pid=-1 | skip over run
a lock that is left | quiet lock=value | left
a lock without an expiry | immortal 5 key=k | immortal
a released lock is left | released a 2 fence=7; drained 3 fence=7 | ghost
a kept lock lets another in | {HELD_LETS_IN} | held
a run in the pause | {PAUSED}; released r 1.2 fence=990; body 1.5 1.6 | pause
a duplicate at 1.5 is given the id of nobody, as it should | message a 0.5 value=run-a; body 1 2
    run=run-a of=a; not-sent 1.5 task=job existing=nobody asked=1.5 | stale
a reservation that is left at 3.35 | message a 0.5 value=run-a; body 1 2 run=run-a of=a; drained
    {2.0 + LATE} by=a | reserved
one told later | {LOSER}; told loser {1.5 + BOUND + 0.1} | not told
one that believes beyond its right | body 1 4 sample=2,3.5 | believed
not at once | {KILLED}; dead 100 2; freed dead {2.0 + LATE} | not freed
a dead body's lock that comes back | {KILLED}; dead 100 2; freed dead 2.1; revived 2.5 key=k |
    revived
out of order | {TWO_WAIT}; took b 3; took a 4 | order
in the order in which they came | came one 0.5; came two 0.9; {SIDE_BY_SIDE} | two wait
a newcomer overtakes | parked a 1; took new 2; took a 3 | overtook
one that asks every 0.01 s | {asks_every(0.01)} | spins
it failed as it was parked, and then body 3 3.5 of=a | parked a 1; failed a 1.1 {SOFT}; took a 3;
    body 3 3.5 of=a | failed, ran
nobody runs for too long | {WAITED} | stuck
an old one that replaces a newer one | body 0.5 1.5 of=b fence=490 outcome=retried; message a 1
    {SKIPPED} about=b; parked a 1.2 newest=t; parked b:0.1 2 newest=t replaced=a; took b:0.1 2.5
    | newest
calls that name each other | call one 1; call two 1.2 over=one; replaced two one | no run
before it is quiet | call c0 1.0; ran c0 1.4 | not quiet
late | call one 1; ran one 6 | max wait
it was replaced and killed, and runs again | {ENDS}; dead 100 2.55; {OLD_AGAIN} | replaced, ran
    and older last
the older one ends the newer one | {ENDS}; replaces old 3 | older won
bodies one after the other | body 1 2; body 2.01 3 |
a body that was told | body 1 4 run=loser lost=yes sample=3.05; told loser 3.05; body 3.2 3.6 |
messages end in one way each | {RAN}; message b {SKIPPED}; conflict b 1.5 skipped; message c
    value=skipped; conflict c 1.6 skipped_with_a_result; message d value=run-d; conflict d 1.7
    deferred; body 2.1 2.5 run=run-d of=d; message e state=FAILURE error=LockConflict; conflict e
    1.8 raised |
in order | {TWO_WAIT}; took a 3; took b 4 |
when it is quiet | call c0 1.0; ran c0 1.5 |
the newer run follows the older one | {ENDS} |
its child died | {TWICE}; dead 100 2.5 |
"""


def rows(table):
    joined = table.strip().replace("\n    ", " ")
    for line in joined.splitlines():
        shows, history, rules = (each.strip() for each in line.split("|"))
        yield pytest.param(history, rules, id=shows)


@pytest.mark.parametrize(("history", "rules"), list(rows(TABLE)))
def test_a_rule_finds_what_breaks_it_and_nothing_else(history, rules):
    verdict = check(story(history))
    found = sorted({violation.rule for violation in verdict.violations})
    assert found == sorted(filter(None, rules.split(" and ")))
