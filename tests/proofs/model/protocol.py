"""The protocol of the lock as a small state machine: not the code, but what the code is to do.

A few deliveries want one lock. Time is counted in ticks. Whatever may happen happens, in every
order. A step is a name and the state after it. README.md says what is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from .states import HOLD_OFF, NEIGHBOUR, TTL, Delivery, Sent, Setting, State, Stray, Wire

Steps = Iterator[tuple[str, State]]


class Protocol:
    """All that may happen in a setting."""

    def __init__(self, setting: Setting) -> None:
        self.sent = setting.deliveries
        self.faults = setting.faults
        self.late_acks = setting.late_acks
        self.rules = setting.rules

    def start(self) -> State:
        at_once = (sent.attempt == 0 and sent.copy_of is None for sent in self.sent)
        return State(tuple(Delivery("queued" if now else "unsent") for now in at_once))

    def steps_from(self, state: State) -> Steps:
        """Every step that may come next."""
        return ((name, after) for name, after in self._steps(state) if after != state)

    def _steps(self, state: State) -> Steps:
        yield from self._tick(state)
        yield from self._server(state)
        for who, one in enumerate(state.deliveries):
            if one.child == "up":
                yield from ((f"{who} {name}", s) for name, s in self._child(state, who, one))
            if one.worker == "up":
                parent = self._parent(state, who, one)
                yield from ((f"the parent of {who} {name}", s) for name, s in parent)
            if one.at not in ("unsent", "over"):
                yield from self._broker(state, who, one)
                yield from self._harm(state, who, one)

    # -- time -----------------------------------------------------------------------------

    def _tick(self, state: State) -> Steps:
        """Time passes. Who is up does not let it: it listens, extends and releases before."""
        for one in state.deliveries:
            busy = one.wire or one.due or one.at in ("ended", "retrying")
            on_its_way = one.wire and not one.wire.answer and "delay" not in self.faults
            if (one.child == "up" and busy) or on_its_way:
                return
        ttl = max(state.ttl - int(self.rules.locks_expire), 0)
        yield (
            "a tick",
            state._replace(
                deliveries=tuple(map(self._older, state.deliveries)),
                holder=state.holder if ttl else None,
                ttl=ttl,
                hold_off=max(state.hold_off - 1, 0),
            ),
        )

    def _older(self, one: Delivery) -> Delivery:
        passed = int(self.rules.right_ends_by_own_clock)
        wire = one.wire and one.wire._replace(left=max(one.wire.left - passed, 0))
        due = one.at == "inside" and not one.lost
        return one._replace(right=max(one.right - passed, 0), wire=wire, due=due)

    # -- the server: each question is one script ------------------------------------------

    def _server(self, state: State) -> Steps:
        for who, one in enumerate(state.deliveries):
            if one.wire and not one.wire.answer:
                after, answer = self._serve(state, who, one.wire.asks)
                left = one.wire.left if answer in ("yours", "taken again") else 0
                after = after.change(who, wire=Wire(one.wire.asks, left, answer))
                yield f"{who} is answered: {answer}", after
        for stray in state.strays:
            without = state._replace(strays=state.strays - {stray})
            yield f"{stray.who}'s late {stray.asks} is lost", without
            yield f"{stray.who}'s late {stray.asks} arrives", self._serve(without, *stray)[0]
        hasty = "hasty neighbours" in self.faults
        if hasty or ("neighbours" in self.faults and not state.hold_off):
            yield "a neighbour takes its lock", state._replace(counted=NEIGHBOUR)
        if "restart" in self.faults:
            yield "the server restarts empty", self._restarted(state)

    def _serve(self, state: State, who: int, asks: str) -> tuple[State, str]:
        """What the server does, and answers."""
        mine = state.holder is not None and self._token(state.holder) == self._token(who)
        if asks.startswith("acquire"):
            return self._acquire(state, who, mine, again=asks == "acquire again")
        if asks == "release":
            return self._release(state, who, mine)
        if mine:
            return state._replace(ttl=TTL, counted=who), "yours"
        nobody_since = state.counted in (None, who) or not self.rules.retakes_look
        if state.holder is None and asks == "retake" and nobody_since:
            return state._replace(holder=who, ttl=TTL), "taken again"
        return state, "not yours"

    def _acquire(self, state: State, who: int, mine: bool, again: bool) -> tuple[State, str]:
        message, attempt = self.sent[who][:2]
        taken = state._replace(holder=who, ttl=TTL, newest=who, counted=who), "yours"
        if mine:
            return state._replace(ttl=TTL), "yours"
        for how in ("ran", "superseded"):
            if (message, attempt, how) in state.done and not again:
                return state, how
        if self.rules.refuses_what_comes_late and state.deliveries[who].freed:
            return state, "another's"  # and nobody hears it
        if state.holder is None:
            return taken
        holder = self.sent[state.holder]
        if holder.message != message:
            return state, "another's"
        if holder.attempt < attempt:  # which is ending, or has let an extension pass
            return taken if state.ttl < TTL / 2 else (state, "the earlier attempt's")
        if holder.attempt > attempt and not again:
            return state, "superseded"
        return state, "its copy's"

    def _release(self, state: State, who: int, mine: bool, noted: bool = True) -> tuple[State, str]:
        if noted and self.late_acks:
            how = "superseded" if state.deliveries[who].at == "retrying" else "ran"
            state = state._replace(done=state.done | {(*self.sent[who][:2], how)})
        if mine or (state.holder is not None and not self.rules.compares_tokens):
            wrong = "" if state.holder == who else f"{who} freed the lock of {state.holder}"
            state = state._replace(holder=None, ttl=0, wrong=wrong)
        if Stray(who, "retake") in state.strays:
            state = state._replace(counted=NEIGHBOUR)  # so that a late retake is none
        return state.change(who, freed=True), "so be it"

    def _token(self, who: int) -> object:
        return self.sent[who].message if self.rules.token_is_task_id else who

    def _restarted(self, state: State) -> State:
        """Every lock and note is gone, and every question that was on its way."""
        for who, one in enumerate(state.deliveries):
            if one.wire and not one.wire.answer:
                due = one.at == "inside" and not one.lost
                state = state.change(who, wire=None, due=due)
        return state._replace(
            holder=None,
            ttl=0,
            counted=None,
            hold_off=HOLD_OFF,
            done=frozenset(),
            strays=frozenset(),
        )

    # -- the child ------------------------------------------------------------------------

    def _child(self, state: State, who: int, one: Delivery) -> Steps:
        def ask(what: str, ttl: int = TTL) -> tuple[str, State]:
            return f"asks: {what}", state.change(who, wire=Wire(what, ttl), due=False)

        if one.wire is not None:
            if one.wire.answer:
                yield from self._listen(state, who, one, one.wire)
            if "loss" in self.faults:
                yield from self._give_up(state, who, one, one.wire)
        elif one.at == "queued":
            if self.sent[who].hold_off <= HOLD_OFF - state.hold_off or not self.rules.holds_off:
                yield ask("acquire")
        elif one.at == "inside":
            if one.due:
                yield ask("retake" if self._retakes(one) else "extend")
            yield from self._end_body(state, who)
        elif one.at in ("ended", "retrying"):
            yield ask("release", 0)

    def _retakes(self, one: Delivery) -> bool:
        within = self.rules.retakes == "within the right" and one.right > 0
        return within or self.rules.retakes == "always"

    def _end_body(self, state: State, who: int) -> Steps:
        ended = state.change(who, at="ended", right=0, due=False)
        yield "ends its body", ended
        retry = self._number_of_unsent(state, self.sent[who].message, self.sent[who].attempt + 1)
        if retry is not None:
            out = ended.change(who, at="retrying") if self.rules.body_ends_with_its_retry else state
            yield f"sends its retry, {retry}", out.change(retry, at="queued")

    def _listen(self, state: State, who: int, one: Delivery, wire: Wire) -> Steps:
        """The child gets its answer."""
        message, heard = self.sent[who].message, state.change(who, wire=None)
        right = wire.left if self.rules.right_counts_from == "the question" else TTL
        if wire.asks == "release":
            yield "knows that it has released", self._finished(heard, who)
        elif wire.answer in ("yours", "taken again"):
            yield "goes on inside", heard.change(who, at="inside", right=right)
        elif wire.asks in ("extend", "retake"):
            yield "is told that it lost", heard.change(who, lost=True, right=0)
        elif wire.answer == "ran" and not any(of == message for of, _ in state.ends):
            # In some seconds' time: who is up has stored its result by then.
            if not any(o.child == "up" and o.at == "ended" and o.freed for o in state.deliveries):
                again = state.change(who, wire=Wire("acquire again", TTL))
                yield "asks again, for there is no result", again
        elif wire.answer in ("ran", "superseded"):
            yield "ends as a copy", heard.over(who)
        elif wire.answer == "its copy's" and not self.rules.defers_copies:
            yield "is dropped as a duplicate", heard.over(who)
        else:
            yield "is deferred", heard
            if wire.answer == "another's":
                note = {(*self.sent[who][:2], "ran")} if self.late_acks else set()
                skipped = heard._replace(done=heard.done | note)
                yield "is skipped", skipped.over(who, "skipped", message)

    def _give_up(self, state: State, who: int, one: Delivery, wire: Wire) -> Steps:
        """The child waits no longer. Past its right it has lost the lock."""
        lost = one.lost or (one.at == "inside" and not one.right)
        alone = self._left_behind(state, who, one).change(who, wire=None, lost=lost)
        yield "gets no answer", alone
        if wire.asks == "release":
            yield "leaves its lock to lapse", self._finished(alone, who)

    def _left_behind(self, state: State, who: int, one: Delivery) -> State:
        """Nobody waits for this delivery's question any more, but it may arrive."""
        wire = one.wire
        if not wire or wire.answer or "delay" not in self.faults or state.strays:
            return state  # one at a time is enough
        return state._replace(strays=frozenset({Stray(who, wire.asks)}))

    def _finished(self, state: State, who: int) -> State:
        ran = "ran" if state.deliveries[who].at == "ended" else ""
        return state.over(who, ran, self.sent[who].message)

    # -- the parent, the broker, and what goes wrong --------------------------------------

    def _parent(self, state: State, who: int, one: Delivery) -> Steps:
        """It has the token. Of its child it knows for certain only when it is dead."""
        dead = one.child == "dead"
        if one.at in ("inside", "ended", "retrying"):
            if state.holder == who:
                yield "extends", state._replace(ttl=TTL)
            elif state.holder is None and self.rules.parent_retakes:
                yield "takes it again", state._replace(holder=who, ttl=TTL)
        if dead or (one.at == "inside" and not self.rules.parent_awaits_death):
            mine = state.holder is not None and self._token(state.holder) == self._token(who)
            yield "releases", self._release(state, who, mine, noted=False)[0]
        if dead and one.at not in ("unsent", "over"):
            yield "reports", state.over(who, "failed", self.sent[who].message)

    def _broker(self, state: State, who: int, one: Delivery) -> Steps:
        """With late acks, what is not acknowledged is delivered again."""
        copy = self._number_of_unsent(state, *self.sent[who][:2], copy_of=who)
        if copy is None or not self.late_acks:
            return
        out = state.change(copy, at="queued")
        if one.child == "dead":  # the connection is closed, or `reject_on_worker_lost`
            yield f"{who} is delivered again, as {copy}", out.over(who)
        elif "copy" in self.faults:
            yield f"{who} is delivered again, as {copy}", out

    def _number_of_unsent(
        self, state: State, message: str, attempt: int, copy_of: int | None = None
    ) -> int | None:
        wanted = Sent(message, attempt, copy_of)
        number = self.sent.index(wanted) if wanted in self.sent else None
        unsent = number is not None and state.deliveries[number].at == "unsent"
        return number if unsent else None

    def _harm(self, state: State, who: int, one: Delivery) -> Steps:
        if one.child == "paused":
            yield f"{who} goes on", state.change(who, child="up")
        # To pause what is free to be late anyhow changes nothing.
        elif "pause" in self.faults and one.child == "up" and (one.wire or one.at != "queued"):
            yield f"{who} is paused", state.change(who, child="paused")
        dead = self._left_behind(state, who, one)
        dead = dead.change(who, child="dead", wire=None, right=0, due=False)
        if "kill child" in self.faults and (one.wire or one.at != "queued"):
            yield f"the child of {who} is killed", dead
        if "kill worker" in self.faults and one.worker == "up":
            yield f"the worker of {who} is killed", dead.change(who, worker="dead")
