"""The checker: every rule finds the history that breaks it, and passes the one beside it.

A row is what is shown, the history (see `stories`), and the rules that are broken.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .checker import DUE, NOISE, SOON, STUCK, check
from .stories import MAX_WAIT, TTL, story

#: Later than any bound allows; and the bounds of what takes longer.
LATE = SOON + NOISE + 0.1
BOUND = TTL / 3 + SOON + NOISE
FREED_BY = 2.0 + TTL + SOON + NOISE
MAX_WAIT_OVER = 1.0 + MAX_WAIT + DUE + NOISE

# What several rows have in common.
SKIPPED = "state=REVOKED error=TaskSkipped"
LOST = "state=PENDING"
SOFT = "error=SoftTimeLimitExceeded pid=100"
RAN = "message a value=run-a; body 1 2 run=run-a of=a"
TWICE = "message a value=second; body 1 2 run=first of=a; body 5 6 run=second of=a"
FORGOT = "given allows=overlap; fault 1.1 1.4"
KILLED = "body 1 run=dead sample=1.1"
LOSER = f"{FORGOT}; body 1 8 run=loser lost=yes; body 1.5 1.9; beat loser 1.45 9.0"
TWO_WAIT = "parked a 1; parked b 2"
WAITED = f"body 0.5 1.5; parked a 1; took a {1.7 + STUCK}"
A_IS_LEFT = "message a state=none; parked a 1"
PAUSED = "body 1 1.2 run=r fence=990 min_hold=1.0"
HELD = (
    "message a 0.5 value=retry; body 1 2 of=a outcome=retried fence=7;"
    "released a 2 fence=7 kept_for_retry=yes; body 5 5.5 of=a run=retry attempt=1 fence=9"
)
HELD_LETS_IN = f"{HELD}; body 3 3.1 fence=8"
REPLACED = (
    "message b value=run; parked a 1 newest=t; parked b 2 newest=t replaced=a; took b 3;"
    "body 3 3.5 of=b run=run fence=3000"
)
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
SAYS = "sent old 0.5 task=t; result old 90 state=REVOKED error=TaskReplaced about"
REDIS = "given broker=redis acks_late=yes; worker 0 main=10"
#: It was in the queue until just before 2.0, and nowhere since.
POPPED = (
    f"{REDIS}; sent a 1 task=job; place a 1.05 tag=t1 where=queue since=1.0;"
    "place a 2.0 tag=t1 where=nowhere since=1.95"
)
GOT = "received a 1.1 tag=t1; published a 1.2 pid=100 main=10; acked a 1.21 main=11 tag=t1"


def asks_every(seconds):
    return ";".join(f"asks a {1 + number * seconds}" for number in range(40))


TABLE = f"""
== overlaps, fences and limits
bodies one after the other | body 1 2; body 2.01 3 |
two bodies that both have the lock | body 1 2; body 1.5 1.6 | overlap
bodies of different keys | body 1 2 key=a; body 1.5 2.5 key=b |
a retry beside its own earlier attempt | body 1 2 of=x outcome=retried; body 1.5 2.5 of=x attempt=1
    | overlap
a retry at 2.52, of an attempt that stood still since 1.5 | body 1 3.4 run=first of=x
    outcome=retried; beat first 1.5; body {1.5 + TTL / 2 + 0.02} 3.6 of=x attempt=1 |
a retry at 2.4, of an attempt that stood still since 1.5 | body 1 3.4 run=first of=x
    outcome=retried; beat first 1.5; body 2.4 3.6 of=x attempt=1 | overlap
a retry at 2.52, of an attempt that stood still since 1.7 | body 1 3.4 run=first of=x
    outcome=retried; beat first 1.7; body {1.5 + TTL / 2 + 0.02} 3.6 of=x attempt=1 | overlap
a redelivered copy beside the first | body 1 2 of=x; body 1.5 2.5 of=x | overlap and twice
an extended right lasts | body 1 5 run=long; beat long 2; beat long 3.5 |
another body in an extended right | body 1 5 run=long; beat long 2; beat long 3.5; body 4 4.5 |
    overlap
a loser that extends while the winner is inside | body 1 4.9 run=loser; body 3.5 5; beat loser 4 |
    overlap
a body that was told | body 1 4 run=loser lost=yes sample=3.05; told loser 3.05; body 3.2 3.6 |
a killed body until its last sign of life | body 1 sample=1.1,1.2; body 1.3 1.5 |
a killed body with a later sign of life | body 1 sample=1.1,1.4; body 1.3 1.5 | overlap
a body that died at once inside of another | body 1 2; body 1.3 | overlap
a body that stood still before its start has lost the lock, and not the other | body 5 6; body 5.5
    5.8 run=late asked=1.0 lost=yes pid=200; still 200 1.1 5.5; told late 5.51 |
an overlap that the fault allows, and a loser that is told | given allows=overlap; fault 1.2 1.3;
    body 1 3 lost=yes; body 1.5 2.5; signal 990 2 |
an overlap before the fault that allows it | given allows=overlap; fault 1.8 1.9; body 1 2; body
    1.5 1.6 | overlap
an overlap long after the fault that allows it | given allows=overlap; fault 1 1.1; body 10 11;
    body 10.5 10.6 | overlap
an overlap where the server forgot only what had run | given allows=again; fault 1.2 1.3; body 1 2;
    body 1.5 1.6 | overlap
a fence that comes twice | body 1 2 fence=7; body 3 4 fence=7 | fence
a fence that falls | body 1 2 fence=8; body 3 4 fence=7 | fence
fences of acquisitions at one time, in any order | body 1 1.1 asked=0.5 fence=8; body 1.2 1.3
    asked=0.9 fence=7 |
fences of two keys | body 1 2 fence=7 key=a; body 3 4 fence=7 key=b |
as many as the limit at once | body 1 2 limit=2; body 1.1 2.1 limit=2; body 2.05 3 limit=2 |
one more than the limit | body 1 2 limit=2; body 1.1 2.1 limit=2; body 1.2 1.3 limit=2 | limit
one that lost its lock does not count | body 1 2 run=r limit=2; body 1.1 2.1 limit=2; body 1.3 1.4
    limit=2; told r 1.2 |
a body whose key has changed with the release | parked a 1; parked b 1.5; received a 2; took a 2.1
    key=k:moved fence=1; body 2.1 2.9 of=a key=k:moved fence=1; took b 2.5 fence=2; body 2.5 3 of=b
    fence=2 |
the same under the old key | parked a 1; parked b 1.5; took a 2.1 fence=1; body 2.1 2.9 of=a
    fence=1; took b 2.5 fence=2; body 2.5 3 of=b fence=2 | overlap

== messages
messages end in one way each | {RAN}; message b {SKIPPED}; conflict b 1.5 skipped; message c
    value=skipped; conflict c 1.6 skipped_with_a_result; message d value=run-d; conflict d 1.7
    deferred; body 2.1 2.5 run=run-d of=d; message e state=FAILURE error=LockConflict; conflict e
    1.8 raised |
one that vanishes, RETRY | message a state=RETRY | vanished
one that vanishes, none | message a state=none | vanished
one that a dead worker had acknowledged early | message a {LOST}; dead 10 1 |
one that is acknowledged late does not vanish with its worker | given acks_late=yes; message a
    {LOST}; dead 10 1 | vanished
one that the gevent pool killed, and Celery then acknowledged | given acks_late=yes pool=gevent;
    message a {LOST}; dead 10 1 |
one that another worker got since | message a {LOST}; dead 10 1; received a 2 redelivered=yes;
    acked a 2 main=11 | vanished
one that never arrived | sent a 1 task=job | vanished
the same over a faulted broker | given allows=vanished; sent a 1 task=job |
one that a killed worker may just have popped | given broker=redis; sent a 1 task=job; received b
    0.5 main=10; dead 10 1.5 |
RabbitMQ loses none so | sent a 1 task=job; received b 0.5 main=10; dead 10 1.5 | vanished
one that came long after the worker was killed | given broker=redis; sent a 9 task=job; received b
    0.5 main=10; dead 10 1.5 | vanished
one that ran and was skipped | {RAN}; conflict a 3 skipped | outcome
one whose process died after it ran may be skipped later | message a {SKIPPED}; body 1 2 of=a; dead
    100 2.1; conflict a 3 skipped |
the copy of one whose process died at 0.8 as it skipped it runs | message a value=run-a; body 4 5
    run=run-a of=a; conflict a 0.5 skipped pid=7; dead 7 0.8 |
the copy of one whose process died at 3.5 as it skipped it runs | message a value=run-a; body 4 5
    run=run-a of=a; conflict a 0.5 skipped pid=7; dead 7 3.5 | outcome
one that is skipped for its own lock | message a {SKIPPED}; conflict a 1 skipped holder=a | own
    duplicate
a result that nobody returned | message a value=run-x; body 1 2 of=a | result
a skip that did not happen | message a value=skipped | result
a skip that nobody wrote down | message a {SKIPPED} | result
a revocation by nobody | message a state=REVOKED error=TaskRevokedError | result
a revocation | message a state=REVOKED error=TaskRevokedError; fault 1 1.1 id=a |
one that expires is revoked | message a state=REVOKED expires=1.0 |
a state of an earlier attempt over a result | message a state=RETRY; body 1 1.5 of=a
    outcome=retried; body 2 2.5 of=a attempt=1 |
no state over a result | message a {LOST}; body 1 1.5 of=a outcome=retried; body 2 2.5 of=a
    attempt=1 | vanished
a retry that never came | message a state=RETRY; body 1 1.5 of=a outcome=retried | vanished
a state of no attempt | message a state=RETRY; body 1 1.5 of=a | vanished
a state of an earlier attempt over a revocation | message a state=RETRY; body 1 1.5 of=a
    outcome=retried; fault 1.6 1.7 id=a |
one that ended as Celery cancelled it, where vanished is allowed | given acks_late=yes
    allows=vanished; message a state=RETRY; body 1 2 of=a outcome=raised |
one that ended as Celery cancelled it, where nothing is allowed | given acks_late=yes allows=;
    message a state=RETRY; body 1 2 of=a outcome=raised | vanished
one that RabbitMQ drops when it expires: put off, the server away | message a state=none
    expires=1.0; asks a 1; fault 0.5 3 away |
one that RabbitMQ drops when it expires: the server was there | message a state=none expires=1.0;
    asks a 1; fault 0.5 0.9 away | vanished
one that RabbitMQ drops when it expires: it does not expire | message a state=none expires=none;
    asks a 1; fault 0.5 3 away | vanished
one that RabbitMQ drops when it expires: put off | message a state=none expires=1.0; asks a 1;
    conflict a 1.1 redelivered holder=b countdown=0.7 |
one that RabbitMQ drops when it expires: not put off | message a state=none expires=1.0; asks a 1;
    conflict a 1.1 redelivered holder=b | vanished
a worker that crashed | crashed 5 pid=10 status=1 | crashed
one that Celery ended as the broker's connection broke | given allows=vanished; crashed 5 pid=10
    status=1 error=AttributeError |
a task's own error | message a state=FAILURE; failed a 1 error=ValueError pid=100 |
an error of a program | message a state=FAILURE; failed a 1 error=TypeError pid=100 | error
arguments of another release | message a state=FAILURE task=reshaped; failed a 1 error=TypeError
    pid=100 |

== running again
an attempt that completes twice | {TWICE} | twice
another attempt | message a value=s; body 1 2 of=a outcome=retried; body 5 6 run=s of=a attempt=1 |
its child died | {TWICE}; dead 100 2.5 |
its worker died | {TWICE}; dead 10 2.5 |
a death after the second run | {TWICE}; dead 100 5.5 | twice
it was told of its loss | {TWICE}; told first 1.9 |
the server lost its data | given allows=overlap; fault 2.5 2.6; {TWICE} |
the server forgot it | given allows=again; fault 2.5 2.6; {TWICE} |
its release came late | {TWICE}; released a 2.4 fence=990 owned=no | twice
the server could not be told of its end | {TWICE}; released a 2.4 fence=990 owned=no; fault 1.5 3
    away |
the server was told of its end all the same | {TWICE}; released a 2.4 fence=990; fault 1.5 3 away |
    twice
the broker did not hear its acknowledgement: allows=vanished, redelivered=yes | given
    allows=vanished; {TWICE}; received a 4 redelivered=yes |
the broker did not hear its acknowledgement: allows=vanished, redelivered=no | given
    allows=vanished; {TWICE}; received a 4 redelivered=no | twice
the broker did not hear its acknowledgement: allows=vanished acks_late=yes, redelivered=yes | given
    allows=vanished acks_late=yes; {TWICE}; received a 4 redelivered=yes | twice
the broker did not hear its acknowledgement: allows=, redelivered=yes | given allows=; {TWICE};
    received a 4 redelivered=yes | twice
its greenlet was killed: gevent, 2.5, 10 | given pool=gevent; {TWICE}; cancelled a 2.5 main=10 |
its greenlet was killed: gevent, 5.5, 10 | given pool=gevent; {TWICE}; cancelled a 5.5 main=10 |
    twice
its greenlet was killed: gevent, 2.5, -1 | given pool=gevent; {TWICE}; cancelled a 2.5 main=-1 |
    twice
its greenlet was killed: threads, 2.5, 10 | given pool=threads; {TWICE}; cancelled a 2.5 main=10 |
    twice
an attempt that did not complete | message a value=second; body 1 of=a sample=1.1; body 5 6
    run=second of=a |
without a lock, published again after 0.6 s, redelivered=no | parked a 0.1; offered a 0.2; offered
    a 0.8 since=0.6; body 1 1.5 of=a token=none redelivered=no; out a 1; body 2 2.5 of=a token=none
    |
without a lock, published again after 0 s, redelivered=yes | parked a 0.1; offered a 0.2; offered a
    0.8 since=0; body 1 1.5 of=a token=none redelivered=yes; out a 1; body 2 2.5 of=a token=none |
without a lock, published again after 0 s, redelivered=no | parked a 0.1; offered a 0.2; offered a
    0.8 since=0; body 1 1.5 of=a token=none redelivered=no; out a 1; body 2 2.5 of=a token=none |
    twice
without a lock, published again after 0.6 s, redelivered=no | parked a 0.1; offered a 0.2; offered
    a 0.8 since=0.6; body 1 1.5 of=a token=held redelivered=no; out a 1; body 2 2.5 of=a token=held
    | twice
a task without a lock that the broker delivers again: no | message a value=second; body 1 1.5
    run=first of=a fence=0 token=none; body 5 5.5 run=second of=a fence=0 token=none redelivered=no
    | twice
a task without a lock that the broker delivers again: yes | message a value=second; body 1 1.5
    run=first of=a fence=0 token=none; body 5 5.5 run=second of=a fence=0 token=none
    redelivered=yes |
a skip over a run, stored | given acks_late=yes; message a {SKIPPED}; body 1 2 run=run-a of=a;
    stored a 2.01 value=run-a; dead 10 2.1; conflict a 5 skipped pid=-1 | skip over run
a skip over a run, not stored | given acks_late=yes; message a {SKIPPED}; body 1 2 run=run-a of=a;
    dead 10 2.1; conflict a 5 skipped pid=-1 |
a skip over a run, forgotten | given acks_late=yes allows=again; message a {SKIPPED}; body 1 2
    run=run-a of=a; stored a 2.01 value=run-a; fault 3 3.1; dead 10 2.1; conflict a 5 skipped
    pid=-1 |
a result that stays | {RAN}; stored a 2.01 value=run-a |

== what is left, and stands in the way
nothing is left | quiet |
a lock that is left | quiet lock=value | left
a lock without an expiry | immortal 5 key=k | immortal
a waiting room that is left | {A_IS_LEFT}; quiet room=a:0.0 | vanished and left
a released lock in the way: asked before | released a 2 fence=7; conflict b 2.1 skipped holder=a
    holder_fence=7 |
a released lock in the way: long after | released a 2 fence=7; conflict b 3.5 skipped holder=a
    holder_fence=7 | ghost
a released lock in the way: who waited names whom it met first | released a 2 fence=7; conflict b
    3.5 waited holder=a holder_fence=7 |
a released lock in the way: it stood still | released a 2 fence=7; still 100 1.9 3.4; conflict b
    3.5 skipped holder=a holder_fence=7 |
a released lock in the way: not confirmed | released a 2 fence=7 owned=no; conflict b 3.5 skipped
    holder=a holder_fence=7 |
another lock is left | released a 2 fence=7; drained 3 fence=8 |
a released lock is left | released a 2 fence=7; drained 3 fence=7 | ghost
a kept lock lets another in | {HELD_LETS_IN} | held
a kept lock lapses | {HELD}; body 4.1 4.2 fence=8 |
a kept lock is free after its retry | message a 0.5 value=retry; body 1 2 of=a outcome=retried
    fence=7; released a 2.0 fence=7 kept_for_retry=yes; body 2.5 3.0 of=a run=retry attempt=1
    fence=9; body 3.3 3.4 fence=10 |
a retry begins before that is said | message a 0.5 value=retry; body 1 2 of=a outcome=retried
    fence=7; released a 2.2 fence=7 kept_for_retry=yes; body 2.01 2.51 of=a run=retry attempt=1
    fence=9; body 3.0 3.1 fence=10 |
a retry came | {HELD_LETS_IN}; received a 2.5 | held
a retry that cannot ask gives up its lock | {HELD_LETS_IN}; received a 2.5; fault 2.4 2.8 away |
a retry is revoked | {HELD_LETS_IN}; fault 2.5 2.6 id=a |
another is revoked | {HELD_LETS_IN}; fault 2.5 2.6 id=another | held
it is revoked later | {HELD_LETS_IN}; fault 3.5 3.6 id=a | held
a kept lock is lost | given allows=overlap; fault 1.5 1.6; {HELD_LETS_IN} |
a kept lock is forgotten | given allows=again; fault 1.5 1.6; {HELD_LETS_IN} |
the clock goes forward | {HELD}; body 3.5 3.6 fence=8; fault 2.5 2.5 seconds=0.8 |
a little forward | {HELD}; body 3.1 3.2 fence=8; fault 2.5 2.5 seconds=0.2 | held
the clock goes back | {HELD}; body 3.1 3.2 fence=8; fault 2.5 2.5 seconds=-5.0 | held
a run in the pause | {PAUSED}; released r 1.2 fence=990; body 1.5 1.6 | pause
the clock goes forward in the pause | {PAUSED}; released r 1.2 fence=990; fault 1.3 1.3 seconds=0.6;
    body 1.5 1.6 |
the clock goes forward a little in the pause | {PAUSED}; released r 1.2 fence=990; fault 1.3 1.3
    seconds=0.2; body 1.5 1.6 | pause
a run after the pause | {PAUSED}; released r 1.2 fence=990; body 2 2.1 |
no pause after a failure | {PAUSED} outcome=raised; released r 1.2 fence=990; body 1.5 1.6 |
no pause for a loser | {PAUSED}; released r 1.2 fence=990 owned=no; body 1.5 1.6 |
a pause that is met at 3.5 | body 1 1.2 run=r fence=990 min_hold=3.0; released r 1.2 fence=990;
    conflict late 3.5 skipped holder=x holder_fence=990 |
a pause that is met at 9.5 | body 1 1.2 run=r fence=990 min_hold=3.0; released r 1.2 fence=990;
    conflict late 9.5 skipped holder=x holder_fence=990 | ghost
a duplicate at 1.5 is given the id of a, as it should | message a 0.5 value=run-a; body 1 2
    run=run-a of=a; not-sent 1.5 task=job existing=a asked=1.5 |
a duplicate at 2.5 is given the id of a, as it should | message a 0.5 value=run-a; body 1 2
    run=run-a of=a; not-sent 2.5 task=job existing=a asked=2.5 |
a duplicate at 3.35 is given the id of a, as it should | message a 0.5 value=run-a; body 1 2
    run=run-a of=a; not-sent {2.0 + LATE} task=job existing=a asked={2.0 + LATE} | stale
a duplicate at 1.5 is given the id of nobody, as it should | message a 0.5 value=run-a; body 1 2
    run=run-a of=a; not-sent 1.5 task=job existing=nobody asked=1.5 | stale
a duplicate at 3.35 is given the id of a, dead 10 2.1 | message a 0.5 value=run-a; body 1 2
    run=run-a of=a; dead 10 2.1; not-sent {2.0 + LATE} task=job existing=a asked={2.0 + LATE} |
a duplicate at 3.35 is given the id of a, fault 1.9 2.2 away | message a 0.5 value=run-a; body 1 2
    run=run-a of=a; fault 1.9 2.2 away; not-sent {2.0 + LATE} task=job existing=a
    asked={2.0 + LATE} |
what a lost message left reserved lapses | message a state=none; dead 10 1; not-sent 9 task=job
    existing=a asked=9 |
a reservation that is left at 3.35 | message a 0.5 value=run-a; body 1 2 run=run-a of=a; drained
    {2.0 + LATE} by=a | reserved
a reservation that is left at 2.1 | message a 0.5 value=run-a; body 1 2 run=run-a of=a; drained 2.1
    by=a |

== losers, and the dead
one that is never told | {FORGOT}; body 1 8 right=9.0; body 1.5 1.9 | not told
one that ended before | {FORGOT}; body 1 1.8; body 1.5 1.9 |
one that believes beyond its right | body 1 4 sample=2,3.5 | believed
one whose right was confirmed while it asked | body 1 4 run=slow sample=2,3.5; beat slow 3.1 |
one told within a third of the ttl | {LOSER}; told loser {1.5 + BOUND - 0.1} |
one told later | {LOSER}; told loser {1.5 + BOUND + 0.1} | not told
the time in which it stood still does not count | {LOSER}; told loser {1.5 + BOUND + 0.9}; still 100
    1.6 2.6 |
nor the time in which the machine was late | {LOSER}; told loser {1.5 + BOUND + 0.9}; late 2.6 1.0 |
while the server is away it has until its right ends, -0.1 | given allows=overlap; fault 1.1 4
    away; body 1 8 run=loser lost=yes; body 1.5 1.9; beat loser 1.05 9.0; told loser
    {1.5 + TTL + SOON + NOISE - 0.1} |
while the server is away it has until its right ends, 0.1 | given allows=overlap; fault 1.1 4 away;
    body 1 8 run=loser lost=yes; body 1.5 1.9; beat loser 1.05 9.0; told loser
    {1.5 + TTL + SOON + NOISE + 0.1} | not told
a killed child's lock is free at once | {KILLED}; dead 100 2; freed dead 2.1 |
not at once | {KILLED}; dead 100 2; freed dead {2.0 + LATE} | not freed
a killed worker's lock is free after its ttl | {KILLED}; dead 10 2; freed dead {FREED_BY - 0.1} |
later | {KILLED}; dead 10 2; freed dead {FREED_BY + 0.1} | not freed
a lock that could not be released lapses | {KILLED}; dead 100 2; freed dead 4.0; fault 1.9 2.2 away
    |
a dead body's lock that comes back | {KILLED}; dead 100 2; freed dead 2.1; revived 2.5 key=k |
    revived

== the order of a room
in order | {TWO_WAIT}; took a 3; took b 4 |
out of order | {TWO_WAIT}; took b 3; took a 4 | order
parked at one time | parked a 1; parked b 1.005; took b 3; took a 4 |
to the front | {TWO_WAIT} in_front=yes; took b 3; took a 4 |
over one at the front | parked a 1; parked old 2 newest=t in_front=yes; parked new 3 newest=t
    replaced=old; took new 4; took a 5 |
over the first one | parked old 1 newest=t; parked a 2; parked new 3 newest=t replaced=old; took
    new 4; took a 5 |
over the second one | parked a 1; parked old 2 newest=t; parked new 3 newest=t replaced=old; took
    new 4; took a 5 | order
over two | parked a 1 newest=c; parked b 2; parked old 3 newest=c in_front=yes; parked new 4
    newest=c replaced=old,a; took new 5; took b 6 | two wait
it may have had the lock, and died | {TWO_WAIT}; asks a 2.5; took b 3; took a 4 |
it gave up | {TWO_WAIT}; out a 2.5; took b 3; took a 4 |
the server came back empty | given allows=again; {TWO_WAIT}; fault 2.3 2.4 away; took b 3; took a 4
    |
rooms of two locks | parked a 1 key=one; parked b 2 key=two; took b 3 key=two; took a 4 key=one |
a newcomer overtakes | parked a 1; took new 2; took a 3 | overtook
who was woken makes sure of it | took w 1.5 fence=7 token=w asked=0.5; parked a 1.4; took w 2
    fence=7 token=w; took a 3 |
who lost it meanwhile takes it anew | took w 1.5 fence=7 token=w asked=0.5; parked a 1.4; took w 2
    fence=8 token=w; took a 3 | overtook
newcomers before and after the room | took early 1; parked a 1; took a 2; took late 2.5 |
one whose message is published is no newcomer | parked a 1; offered b 1.5; took b 2; took a 3 |
the message is late, offered at 2.0, as first 0.0 s before | parked a 1; parked b 1.1; offered a
    2.0 since=0.0; took new 3; took a 4; took b 5 |
the message is late, offered at 2.1, as first 0.0 s before | parked a 1; parked b 1.1; offered a
    2.1 since=0.0; took new 3; took a 4; took b 5 | overtook
the message is late, offered at 3.5, as first 1.6 s before | parked a 1; parked b 1.1; offered a
    3.5 since=1.6; took new 3; took a 4; took b 5 |
the message is late, offered at 3.5, as first 1.4 s before | parked a 1; parked b 1.1; offered a
    3.5 since=1.4; took new 3; took a 4; took b 5 | overtook
its time is over, and it is published to end | parked a 1; offered a 1.5 gives_up=yes; took new 1.6;
    out a 1.7 |
its time is not over | parked a 1; offered a 1.5; took new 1.6; out a 1.7 | overtook
it takes the lock that is kept for nobody, as a message is late | parked a 1; offered a 1.2;
    parked c 2; parked b 2.1; offered b 2.3 gives_up=yes; took b 2.4; took c 5; took a 6 |
it takes the lock before that message is late | parked a 1; offered a 1.7; parked c 2; parked b 2.1;
    offered b 2.3 gives_up=yes; took b 2.4; took a 5; took c 6 | order
one that met a held lock is waited for again | parked a 1; offered a 1.5; parked a 2; took new 3;
    took a 4 | overtook
until it is late again | parked a 1; offered a 1.5; parked a 2; offered a 2.1; took new 4; took a 5
    |
who asked before the late one went back, at 3.95 | {TWO_WAIT}; offered a 2.5; parked a 3.95; took b
    4 asked=3.9; took a 5 |
who asked before the late one went back, at 3.8 | {TWO_WAIT}; offered a 2.5; parked a 3.8; took b 4
    asked=3.9; took a 5 | order
the next has its chance | {TWO_WAIT}; offered a 2.5; took b 4; took a 5 |
not yet | {TWO_WAIT}; offered a 3.5; took b 4; took a 5 | order
nobody took it for 6.0 s | {TWO_WAIT}; offered a 9 since=6.0; parked a 9.1; took b 9.5; took a 10 |
nobody took it for 4.0 s | {TWO_WAIT}; offered a 9 since=4.0; parked a 9.1; took b 9.5; took a 10 |
    order
=t was passed over | parked a 1 newest==t; parked b 2; passed 2.5 member==t; took b 2.6; took a 5 |
=u was passed over | parked a 1 newest==t; parked b 2; passed 2.5 member==u; took b 2.6; took a 5 |
    order
with 1 slots, one is kept | body 0.5 1 limit=1; parked a 1; offered a 1.5; took new 1.6; took a 2 |
    overtook
with 1 slots, two are published | body 0.5 1 limit=1; {TWO_WAIT}; offered a 2.5; offered b 2.5;
    took b 3; took a 4 | order
with 2 slots, one is kept | body 0.5 1 limit=2; parked a 1; offered a 1.5; took new 1.6; took a 2 |
with 2 slots, two are published | body 0.5 1 limit=2; {TWO_WAIT}; offered a 2.5; offered b 2.5;
    took b 3; took a 4 |
who replaced one of which that is written later | parked a 1 newest=t; parked other 1.5; parked c 2
    newest=t replaced=b; parked b 2.005 newest=t replaced=a; took c 3; took other 4 |
a copy is parked where the first died after it had been | parks b 0.9; {TWO_WAIT}; took b 3; took a
    4 |
who replaced another died before it said so | message a {SKIPPED} about=x; parked a 1 newest=t;
    parks x 1.5 newest=t; parked b 2; took b 3 |
who left is written before who came | parked b 2 newest=t replaced=a; message a {SKIPPED} about=b;
    parked a 2.005 newest=t; took b 3 |
a retry takes what its earlier attempt kept for it | body 0.5 0.9 of=r fence=490 outcome=retried;
    released r 0.95 fence=490 kept_for_retry=yes; parked a 1; took r:0.1 2; took a 3 |
reserved=yes takes its lock past the room | parked a 1; took new 2 reserved=yes; took a 3 |
reserved=no takes its lock past the room | parked a 1; took new 2 reserved=no; took a 3 | overtook
an offer at 0.95 is written before the parking | parked a 1 asked=0.9; offered a 0.95; took new
    4.1; body 4.1 4.5 of=new; took a 5 |
an offer at 0.8 is written before the parking | parked a 1 asked=0.9; offered a 0.8; took new 4.1;
    body 4.1 4.5 of=new; took a 5 | overtook
who runs without a lock since the next release has left | parked a 1; parked b 1.5; received a 2;
    body 2.1 2.9 of=a fence=0; took b 2.5 |
so has one whose arguments do not fit any more | parked a 1; parked b 1.5; received a 2; failed a
    2.1 error=TypeError pid=100; took b 2.5 |
one that asks every 0.1 s | {asks_every(0.1)} |
one that asks every 0.01 s | {asks_every(0.01)} | spins

== who waits is not lost
lost in the room, its worker dead | {A_IS_LEFT}; dead 10 2 | vanished
lost after it left the room | {A_IS_LEFT}; took a 2; dead 10 2.1 |
forgotten by the server | given allows=again; {A_IS_LEFT}; fault 2 2.1 away |
one that names its successor | message a {SKIPPED} about=b; {REPLACED} |
one that names another | message a {SKIPPED} about=another; {REPLACED} | result
one without a result | message a state=none; {REPLACED} | vanished
one that ran | message a value=other; {REPLACED}; body 4 4.5 of=a run=other fence=4000 | outcome
it failed as it released, and attempt 1 runs | message a value=second; body 1 1.5 of=a; failed a
    1.6 {SOFT}; body 3 3.5 of=a fence=3000 run=second attempt=1 |
it failed as it released, and attempt 0 runs | message a value=second; body 1 1.5 of=a; failed a
    1.6 {SOFT}; body 3 3.5 of=a fence=3000 run=second attempt=0 | failed, ran and twice
it failed as it was parked, and then did nothing | parked a 1; failed a 1.1 {SOFT}; took a 3 |
it failed as it was parked, and then body 3 3.5 of=a | parked a 1; failed a 1.1 {SOFT}; took a 3;
    body 3 3.5 of=a | failed, ran
nobody runs for long | body 0.5 1.5; parked a 1; took a {1.4 + STUCK} |
nobody runs for too long | {WAITED} | stuck
one is published and needs the lock no more | {WAITED}; parked b 0.9; offered b 1.9; out b 2 |
one needs it no more | {WAITED}; parked b 0.9; out b 2 | stuck
others run | {WAITED}; body 9 9.5 |
the server is away | {WAITED}; fault 3 12 away |
two in one slot | parked a 1 newest=t; parked b 2 newest=t; took a 3; took b 4 | two wait
the answer that named the one it replaced was lost: asked at 1.95 | parked a 1 newest=t; parked b 2
    newest=t asked=1.95; took a 3; took b 4 | two wait
the answer that named the one it replaced was lost: asked at 1.8 | parked a 1 newest=t; parked b 2
    newest=t asked=1.8; took a 3; took b 4 |
one replaces another, is replaced, and hears of it late | parked a 1 newest=t; parked b 2.3
    newest=t said=older asked=1.5; parked c 2 newest=t replaced=b; took c 3 |
one replaces another, hears of it when asked again, and is replaced | parked a 1 newest=t; parked b
    2.3 newest=t asked=1.5; parked c 2.5 newest=t replaced=b; took c 3 |
one that replaces nobody, and is answered at once | parked a 1 newest=t; parked b 2 newest=t;
    parked c 2.5 newest=t replaced=b; took c 3 | order and two wait
one replaces another, is replaced before it is answered at all, and is answered soon | parked a 1
    newest=t; parked c 2.01 newest=t replaced=b; parked b 2.03 newest=t asked=1.98; took c 3 |
one that came after the late answer, beside another one | parked b 2.3 newest=t asked=1.5; parked a
    2.4 newest=t; parked c 2.5 newest=t replaced=b; took c 3; took a 4 | two wait
one replaces another, and is answered when it comes from the room | parked a 1 newest=t; parks b 1.5
    newest=t; parked c 2.2 newest=t replaced=b; parked b 2.4 in_front=yes asked=1.5; took c 3;
    took b 4 |
one that hears of it at once | parked a 1 newest=t; parked b 2.3 newest=t said=older asked=2.25;
    parked c 2 newest=t replaced=b; took c 3 | order and two wait
a retry beside a newer one | parked a 1 newest=t; parked b:0.1 2 in_front=yes; took b:0.1 3; took a
    4 |
an old one that replaces a newer one | body 0.5 1.5 of=b fence=490 outcome=retried; message a 1
    {SKIPPED} about=b; parked a 1.2 newest=t; parked b:0.1 2 newest=t replaced=a; took b:0.1 2.5 |
    newest

== debounced calls
a burst ends in one run | call c0 1.0; call c1 1.3 over=c0; call c2 1.6 over=c1; ran c2 2.2 |
a call that names nobody newer | call one 1; call two 1.2 over=one; ran two 2; replaced one another
    | no run and result
calls that name each other | call one 1; call two 1.2 over=one; replaced two one | no run
replaced by one that had begun | call two 0.5; ran two 1.2; call one 1.5; parked two 1.6 newest==t
    quiet=0.5,2.0 replaced=one; replaced one two | no run and newest
when it is quiet | call c0 1.0; ran c0 1.5 |
before it is quiet | call c0 1.0; ran c0 1.4 | not quiet
before the newest is | call c0 1.0; call c1 1.4 over=c0; ran c1 1.6 | not quiet
without waiting at all | took one 1; body 1 1.5 of=one quiet=0.5,2.0 | not quiet
after max_wait, though others came | call c0 1.0; call c1 1.4 over=c0; call c2 1.8 over=c1; call c3
    2.2 over=c2; call c4 2.6 over=c3; ran c4 3.0 |
steady calls that run at 4.65 | call c0 1.0; call c1 1.4 over=c0; call c2 1.8 over=c1; call c3 2.2
    over=c2; call c4 2.6 over=c3; call c5 3.0 over=c4; call c6 3.4 over=c5; call c7 3.8 over=c6;
    call c8 4.2 over=c7; ran c8 {MAX_WAIT_OVER - 0.1} {MAX_WAIT_OVER - 0.1} |
steady calls that run at 4.85 | call c0 1.0; call c1 1.4 over=c0; call c2 1.8 over=c1; call c3 2.2
    over=c2; call c4 2.6 over=c3; call c5 3.0 over=c4; call c6 3.4 over=c5; call c7 3.8 over=c6;
    call c8 4.2 over=c7; call c9 4.6 over=c8; ran c9 {MAX_WAIT_OVER + 0.1} {MAX_WAIT_OVER + 0.1}
    | max wait
late | call one 1; ran one 6 | max wait
late, as another holds | call one 1; body 2 5.5 of=other right=9.0; ran one 6 |
late, as a fault strikes | call one 1; fault 2 2.1; ran one 6 |
too late | call one 1; fault 2 2.1; ran one {3.5 + STUCK + NOISE} | max wait and stuck
one call is late | call one 1.6; ran one 5.5 | max wait
calls that come again have their turn before | message again value=x; parked again 1.5 in_front=yes
    quiet=0.5,2.0; call one 1.6; took again 5; body 5 5.4 of=again run=x right=9.0; ran one 5.5 |
a replaced call leaves before that is said, asked at 2.8 | call first 1; call middle 1.5
    over=first; out middle 2.9; call last 2.95 over=middle asked=2.8; ran last 3.1 |
a replaced call leaves before that is said, asked at 2.94 | call first 1; call middle 1.5
    over=first; out middle 2.9; call last 2.95 over=middle asked=2.94; ran last 3.1 | not quiet
that is heard late, when the call comes from the room | call first 0.6; message lost value=x; parks
    lost 2 newest==t quiet=0.5,2.0; call last 2.6 replaced=lost; ran last 2.7; parked lost 2.8
    in_front=yes quiet=0.5,2.0 asked=2 | result
that is heard soon, when the call was replaced already | call first 0.6; message lost value=x; parks
    lost 2.5 newest==t quiet=0.5,2.0; call last 2.55 replaced=lost; ran last 2.65; parked lost 2.58
    newest==t quiet=0.5,2.0 asked=2.5 | result
nobody heard that a call replaced the one of 0.6 | call first 0.6; message lost value=x; parks lost
    2 newest==t quiet=0.5,2.0; call last 2.6 replaced=lost; ran last 2.7 | result
nobody heard that a call replaced the one of 1.9 | call first 1.9; message lost value=x; parks lost
    2 newest==t quiet=0.5,2.0; call last 2.6 replaced=lost; ran last 2.7 | result and not quiet
a call did not live to say that it waits | parks lost 1 newest==t quiet=0.5,2.0; call last 2.9
    replaced=lost; ran last 3.0 |

== runs that end others
the newer run follows the older one | {ENDS} |
it was replaced and killed, and runs again | {ENDS}; dead 100 2.55; {OLD_AGAIN} | replaced, ran and
    older last
the server forgot that | {ENDS}; given acks_late=yes allows=again; fault 2.55 2.56; {OLD_AGAIN} |
it had ended before the newer one was known | given acks_late=yes; body 1 of=old fence=1
    sample=1.5; dead 100 1.6; replaces new 2; took new 2.6 fence=2; body 2.6 3.5 of=new fence=2;
    {OLD_AGAIN} |
the older one ends the newer one | {ENDS}; replaces old 3 | older won
the newer one ends | {ENDS}; conflict new 4 replaced holder=old | older won
it ends for a third one | {ENDS}; conflict new 4 replaced holder=third |
in the order in which they came | came one 0.5; came two 0.9; {SIDE_BY_SIDE} | two wait
in another order | came one 0.9; came two 0.5; {SIDE_BY_SIDE} | two wait and older last
its child died as it had taken the lock, before the other came | took two 0.3 fence=7; came one 0.9;
    came two 0.2; {SIDE_BY_SIDE} | two wait
they came at once | came one 0.52; came two 0.5; {SIDE_BY_SIDE} | two wait
the server did not hear the question | came one 0.9; came two 0.5 unheard; {SIDE_BY_SIDE} | two
    wait
it says by whom | {ENDS}; {SAYS}=new |
it names a third one | {ENDS}; {SAYS}=third | result
it had not heard that it has the lock, and old was told to end | came old 0.9; came new 0.95;
    replaces new 1; conflict new 1.01 replacing holder=old; took old 1.2 fence=1; body 1.2 1.5
    of=old fence=1 outcome=raised; {SAYS}=new | overtook
it had not heard that it has the lock, and another was told to end | came old 0.9; came new 0.95;
    replaces new 1; conflict new 1.01 replacing holder=another; took old 1.2 fence=1; body 1.2 1.5
    of=old fence=1 outcome=raised; {SAYS}=new | overtook and result
it was not | body 1 1.5 of=old outcome=raised; {SAYS}=new | result

== the transport's losses, and ours
as a worker was killed | {POPPED}; dead 10 2.02 |
a worker was killed before | {POPPED}; dead 10 {1.9 - NOISE} | vanished
a worker was killed later | {POPPED}; dead 10 {2.1 + NOISE} | vanished
it stood still until then | {POPPED}; stopped 1.9 pids=10,; dead 10 6 |
a child died | {POPPED}; dead 100 2.02 | vanished
nobody died | {POPPED} | vanished
a worker got it | {POPPED}; received a 1.99 tag=t1; acked a 2 main=11 tag=t1; dead 10 2.02 |
    vanished
it was noted as unacknowledged | {REDIS}; sent a 1 task=job; place a 1.05 tag=t1 where=unacked
    since=1.0; place a 2.0 tag=t1 where=nowhere since=1.95; dead 10 2.02 | vanished
a retry's message was not confirmed: retried, allows=vanished | given allows=vanished; {REDIS};
    sent a 1 task=job; body 1.1 1.4 of=a outcome=retried; received a 2 tag=t1 redelivered=yes;
    conflict a 2.1 already_done; acked a 2.2 main=11 tag=t1 |
a retry's message was not confirmed: retried, pool=prefork | given pool=prefork; {REDIS}; sent a 1
    task=job; body 1.1 1.4 of=a outcome=retried; received a 2 tag=t1 redelivered=yes; conflict a
    2.1 already_done; acked a 2.2 main=11 tag=t1 | vanished
a retry's message was not confirmed: rejected, pool=prefork | given pool=prefork; {REDIS}; sent a 1
    task=job; body 1.1 1.4 of=a outcome=rejected; received a 2 tag=t1 redelivered=yes; conflict a
    2.1 already_done; acked a 2.2 main=11 tag=t1 | vanished
a copy that we published left its queue, dead 10 2.02 | {REDIS}; sent a 1 task=job; {GOT}; place a
    1.25 tag=t2 where=queue since=1.2; place a 2.0 tag=t2 where=nowhere since=1.95; dead 10 2.02 |
a copy that we published left its queue, and nobody died | {REDIS}; sent a 1 task=job; {GOT}; place
    a 1.25 tag=t2 where=queue since=1.2; place a 2.0 tag=t2 where=nowhere since=1.95 | vanished
a copy that nobody saw; a worker died at 1.5 | {REDIS}; sent a 1 task=job; {GOT}; dead 10 1.5 |
a copy that nobody saw; a worker died at 5.0 | {REDIS}; sent a 1 task=job; {GOT}; dead 10 5.0 |
    vanished
a copy that is delivered again is the same message | {REDIS}; sent a 1 task=job; received a 1.1
    tag=t1; received a 4 tag=t1 redelivered=yes; acked a 4.1 main=11 tag=t1; dead 10 1.2 | vanished
with RabbitMQ | given acks_late=yes; worker 0 main=10; sent a 1 task=job; dead 10 1.1 | vanished
"""


def rows(table):
    part, found = "", []
    for line in table.strip().splitlines():
        if line.startswith("== "):
            part = line[3:]
        elif line.startswith(" "):
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        elif line:
            found.append((part, line))
    for part, line in found:
        shows, history, rules = (each.strip() for each in line.split("|"))
        yield pytest.param(history, rules, id=f"{part}: {shows}")


@pytest.mark.parametrize(("history", "rules"), list(rows(TABLE)))
def test_a_rule_finds_what_breaks_it_and_nothing_else(history, rules):
    verdict = check(story(history))
    assert sorted({violation.rule for violation in verdict.violations}) == sorted(
        filter(None, rules.split(" and "))
    )


@pytest.mark.parametrize(
    ("history", "figures"),
    [
        (f"{POPPED}; dead 10 2.02", {"lost_by_transport": 1, "lost_by_us": 0}),
        (POPPED, {"lost_by_transport": 0, "lost_by_us": 1}),
        ("body 1 2; body 2.01 3", {"bodies": 2, "overlaps": 0}),
        (
            "given allows=overlap; fault 1.2 1.3; body 1 3 lost=yes; body 1.5 2.5; signal 990 2",
            {"overlaps": 1, "told": [0.5]},
        ),
        (
            "body 1 4 run=loser lost=yes sample=3.05; told loser 3.05; body 3.2 3.6",
            {"losers": 1, "told": [0.06]},
        ),
        (f"{LOSER}; told loser {1.5 + BOUND + 0.9}; late 2.6 1.0", {"told": [BOUND + 0.9]}),
        (f"{FORGOT}; body 1 1.8; body 1.5 1.9", {"ignorant": 1}),
        (f"message a {LOST}; dead 10 1", {"vanished": 1}),
        (f"{TWICE}; dead 100 2.5", {"again": 1}),
        (f"given allows=again; {A_IS_LEFT}; fault 2 2.1 away", {"forgotten": 1, "parked": 1}),
        (f"{KILLED}; dead 100 2; freed dead 2.1", {"freed_child": [0.1], "freed_worker": []}),
        (f"{KILLED}; dead 10 2; freed dead 3.9", {"freed_child": [], "freed_worker": [1.9]}),
        (f"{KILLED} pid=10; dead 10 2; freed dead 3.9", {"freed_worker": [1.9]}),
        (f"{KILLED}; dead 100 2; freed dead 4; fault 1.9 2.2 away", {"freed_child": []}),
        (
            f"{RAN}; message b {SKIPPED}; conflict b 1.5 skipped; message c value=skipped;"
            "conflict c 1.6 skipped_with_a_result; message d value=run-d; conflict d 1.7 deferred;"
            "body 2.1 2.5 run=run-d of=d; message e state=FAILURE; conflict e 1.8 raised",
            {"outcomes": {"ran": 1, "skipped": 2, "deferred, then ran": 1, "refused": 1}},
        ),
    ],
)
def test_what_is_counted_and_measured(history, figures):
    verdict = check(story(history))
    assert {name: getattr(verdict, name) for name in figures} == {
        name: pytest.approx(figure) for name, figure in figures.items()
    }


def test_a_message_that_the_broker_still_has_is_said_to_be_there():
    place = "place a 1.05 tag=t1 where=unacked since=1.0"
    (violation,) = check(story(f"{REDIS}; sent a 1 task=job; {place}; dead 10 1.1")).violations
    assert "the broker still has it, unacked" in violation.message


@given(
    st.lists(
        st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.5)),
        min_size=2,
        max_size=8,
    ),
    st.data(),
)
def test_any_row_of_bodies_is_fine_until_one_comes_early(row, data):
    early = data.draw(st.integers(1, len(row) - 1))

    def broken(by):
        steps, at = [], 1.0
        for number, (gap, length) in enumerate(row):
            start = at - by if by and number == early else at + gap
            steps.append(f"body {start} {start + length} fence={number + 1}")
            at = start + length
        return {violation.rule for violation in check(story("; ".join(steps))).violations}

    assert broken(by=0.0) == set()
    assert "overlap" in broken(by=row[early - 1][1] / 2)
