"""The market of "Redis in Action", with and without a lock (sections 4.4 and 6.2, table 6.2).

Sellers list items: an item moves from the seller's inventory to the market. Buyers buy them: funds
go one way and the item the other. Without a lock a buyer WATCHes the market, and everything that
anybody does there meanwhile makes it start again. With a lock on the market it waits its turn.

From the top of the repository, with a Redis at REDIS_URL (default: redis://localhost:6379/0):

    python examples/marketplace.py 5        # seconds, with five sellers and five buyers
"""

from __future__ import annotations

import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import redis

from celery_redislock import RedisLock

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
MARKET = "market:"
PRICE = 10
#: Seconds after which a purchase is given up, as in the book.
PATIENCE = 10.0


@dataclass
class Tally:
    """What one seller or buyer has done."""

    listed: int = 0
    bought: int = 0
    retries: int = 0
    waits: list[float] = field(default_factory=list)  # seconds, of each purchase


# -- without a lock ---------------------------------------------------------------------------


def list_item(client: redis.Redis, item: str, seller: str) -> bool:
    """Move an item from the inventory to the market, unless it is gone."""
    inventory = f"inventory:{seller}"
    with client.pipeline() as pipe:
        while True:
            try:
                pipe.watch(inventory)
                if not pipe.sismember(inventory, item):
                    return False
                pipe.multi()
                _list(pipe, item, seller)
                pipe.execute()
                return True
            except redis.WatchError:
                continue


def buy_item(client: redis.Redis, member: str, buyer: str, tally: Tally) -> bool:
    """Buy one item, unless it is gone, the buyer has no money, or its patience ends."""
    give_up = time.monotonic() + PATIENCE
    with client.pipeline() as pipe:
        while time.monotonic() < give_up:
            try:
                pipe.watch(MARKET, f"users:{buyer}")
                price = pipe.zscore(MARKET, member)
                if price is None or price > int(pipe.hget(f"users:{buyer}", "funds") or 0):
                    return False
                pipe.multi()
                _buy(pipe, member, buyer, int(price))
                pipe.execute()
                return True
            except redis.WatchError:
                tally.retries += 1
    return False


# -- with the lock ----------------------------------------------------------------------------


def list_item_locked(client: redis.Redis, lock: RedisLock, item: str, seller: str) -> bool:
    """The same, alone in the market."""
    with lock:
        if not client.sismember(f"inventory:{seller}", item):
            return False
        with client.pipeline() as pipe:
            _list(pipe, item, seller)
            pipe.execute()
    return True


def buy_item_locked(client: redis.Redis, lock: RedisLock, member: str, buyer: str) -> bool:
    """The same, alone in the market. Raises `LockConflict` if its patience ends."""
    with lock:
        with client.pipeline(transaction=False) as pipe:
            price, funds = pipe.zscore(MARKET, member).hget(f"users:{buyer}", "funds").execute()
        if price is None or price > int(funds or 0):
            return False
        with client.pipeline() as pipe:
            _buy(pipe, member, buyer, int(price))
            pipe.execute()
    return True


# -- both -------------------------------------------------------------------------------------


def _list(pipe: Any, item: str, seller: str) -> None:
    pipe.zadd(MARKET, {f"{item}.{seller}": PRICE})
    pipe.srem(f"inventory:{seller}", item)


def _buy(pipe: Any, member: str, buyer: str, price: int) -> None:
    item, seller = member.split(".")
    pipe.hincrby(f"users:{seller}", "funds", price)
    pipe.hincrby(f"users:{buyer}", "funds", -price)
    pipe.sadd(f"inventory:{buyer}", item)
    pipe.zrem(MARKET, member)


def market_lock(url: str) -> RedisLock:
    return RedisLock(url, "market", timeout=PATIENCE)


def sell(url: str, seller: str, locked: bool, until: float) -> Tally:
    """List one item after the other until that time."""
    client, lock = redis.Redis.from_url(url, decode_responses=True), market_lock(url)
    tally = Tally()
    while time.monotonic() < until:
        item = f"item{tally.listed}"
        client.sadd(f"inventory:{seller}", item)
        if locked:
            list_item_locked(client, lock, item, seller)
        else:
            list_item(client, item, seller)
        tally.listed += 1
    return tally


def buy(url: str, buyer: str, locked: bool, until: float) -> Tally:
    """Buy what is on the market until that time."""
    client, lock = redis.Redis.from_url(url, decode_responses=True), market_lock(url)
    client.hset(f"users:{buyer}", "funds", 10**9)
    tally = Tally()
    while time.monotonic() < until:
        offers = client.zrange(MARKET, 0, 49)
        if not offers:
            time.sleep(0.001)
            continue
        began = time.monotonic()
        member = random.choice(offers)
        if locked:
            bought = buy_item_locked(client, lock, member, buyer)
        else:
            bought = buy_item(client, member, buyer, tally)
        tally.waits.append(time.monotonic() - began)
        tally.bought += bought
    return tally


def trade(url: str, locked: bool, seconds: float, traders: int = 5) -> Tally:
    """Run sellers and as many buyers on an empty market, each in a thread. Returns their total."""
    redis.Redis.from_url(url).delete(MARKET)
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(2 * traders) as pool:
        done = [
            pool.submit(work, url, f"{work.__name__}er-{n}", locked, until)
            for n in range(traders)
            for work in (sell, buy)
        ]
    tallies = [each.result() for each in done]
    return Tally(
        sum(tally.listed for tally in tallies),
        sum(tally.bought for tally in tallies),
        sum(tally.retries for tally in tallies),
        [wait for tally in tallies for wait in tally.waits],
    )


def main(seconds: float) -> None:
    for locked in (False, True):
        tally = trade(REDIS_URL, locked, seconds)
        print(
            f"{'lock: ' if locked else 'WATCH:'} {tally.listed} listed, {tally.bought} bought,"
            f" {tally.retries} retries, {sum(tally.waits) / max(tally.bought, 1) * 1000:.0f} ms"
            " a purchase"
        )


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else 5.0)
