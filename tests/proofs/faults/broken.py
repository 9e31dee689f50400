"""Locks that are broken on purpose, from outside: by Lua code that begins a script in the lock
server, for the locks with one name; or by a stranger with a client. The bench must notice each.
"""

from __future__ import annotations

#: Takes the lock whoever waits, as `acquire.lua` replies if the fence is the time.
_TAKE = """
local time = redis.call('TIME')
local fence = time[1] * 1000000 + time[2]
redis.call('SET', KEYS[2], string.format('%.0f', fence))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return fence
"""
#: Another delivery of this task has the lock.
_IS_OWN = """
local held = redis.pcall('GET', KEYS[1])
local id = string.match(ARGV[4], '^(.*):')
if type(held) == 'string' and string.find(held, '"task_id":"' .. id .. '"', 1, true) then
"""

#: By name: what is broken, the script, and the code. The lock's name is that of the breakage.
BROKEN = {
    "no_heartbeat": (
        "nobody extends a lock, and its holder is told that it was",
        "extend",
        "do return {1, 0} end",
    ),
    "plain_del": (
        "a release does not look whose lock it deletes",
        "settle",
        "redis.call('DEL', KEYS[1])",
    ),
    "token_is_task_id": (
        "a copy of a message takes the lock that the first one holds",
        "acquire",
        f"{_IS_OWN} {_TAKE} end",
    ),
    "no_suspension": (
        "a lock is acquired although an operator has suspended it",
        "acquire",
        _TAKE,
    ),
    "skip_on_redelivery": (
        "a copy of a message that meets its own lock is taken for a duplicate",
        "acquire",
        f"{_IS_OWN} return {{'busy', held, redis.call('PTTL', KEYS[1]), 'other', 0}} end",
    ),
}


def scripts() -> dict[str, str]:
    """The code that begins each script: it breaks the locks with these names."""
    begins: dict[str, str] = {}
    for name, (_, script, code) in BROKEN.items():
        only = f"if string.find(KEYS[1], ':{name}', 1, true) then {code} end\n"
        begins[script] = begins.get(script, "") + only
    return begins
