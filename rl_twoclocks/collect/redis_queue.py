"""A run's place on a Redis server: configuration, newest policy, slices partitioned by version.

Keys, all under `rl_twoclocks:<run>:`: `sitting` (a word that every start of a learner chooses anew),
`over` (there once a learner has ended) and, under that word, `config` (JSON), `policy` and `version`
(newest published), `orders` (JSON; what generators do besides collecting), `versions` (sorted set of the
partitions that hold slices), `slices:<version>` (one list each), `taken` (how many left them), `sent`
(by generator, the number of its last slice or question), `generators` (how many have joined), `lost`
(slices that a full queue dropped). So two sittings never mix. A run's name is quoted as in an address.
Everything expires an hour after it was last touched, so that an abandoned run leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rl_twoclocks.collect.patience import WakingClock
from rl_twoclocks.collect.source import Stop, never
from rl_twoclocks.config import ConfigError
from rl_twoclocks.envs import WorkerError
from rl_twoclocks.rundir import masked

LIFE = 3600
"""Seconds until an untouched key expires."""
PAUSE = 0.25
"""Seconds between two attempts to reach the server."""
SILENT = 2.0
"""Seconds for which a server that is away is waited for without a word."""
TYPES = {"versions": "zset", "sent": "hash"} | dict.fromkeys(
    ("sitting", "over", "config", "policy", "version", "orders", "taken", "generators", "lost"),
    "string",
)
"""Of the keys of a run, in Redis's words."""
LOG = logging.getLogger(__name__)
Result = TypeVar("Result")

# Scripts run whole or not at all: a client that dies in between leaves no half-made queue.
_PUSH = """
if redis.call('EXISTS', KEYS[3]) == 0 then return 0 end
-- Sent again because the reply was lost: it is here already.
if ARGV[5] ~= '' and redis.call('HGET', KEYS[4], ARGV[7]) == ARGV[8] then return 1 end
local waiting = 0
local versions = redis.call('ZRANGE', KEYS[1], 0, -1)
for _, v in ipairs(versions) do waiting = waiting + redis.call('LLEN', ARGV[1] .. v) end
if ARGV[5] == '' then
  -- Who asks for room is alive, however long it has to wait.
  redis.call('HSET', KEYS[4], ARGV[7], ARGV[8])
  redis.call('EXPIRE', KEYS[4], ARGV[6])
  return waiting < tonumber(ARGV[3]) and 1 or 0
end
if waiting >= tonumber(ARGV[3]) then
  if ARGV[4] ~= 'drop' then return 0 end
  redis.call('LPOP', ARGV[1] .. versions[1])
  redis.call('INCR', KEYS[2])
  redis.call('EXPIRE', KEYS[2], ARGV[6])
  if redis.call('LLEN', ARGV[1] .. versions[1]) == 0 then redis.call('ZREM', KEYS[1], versions[1]) end
end
redis.call('RPUSH', ARGV[1] .. ARGV[2], ARGV[5])
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[2])
redis.call('EXPIRE', ARGV[1] .. ARGV[2], ARGV[6])
redis.call('EXPIRE', KEYS[1], ARGV[6])
redis.call('HSET', KEYS[4], ARGV[7], ARGV[8])
redis.call('EXPIRE', KEYS[4], ARGV[6])
return 1
"""
_DROP = """
local dropped = 0
for _, v in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  dropped = dropped + redis.call('LLEN', ARGV[1] .. v)
  redis.call('DEL', ARGV[1] .. v)
end
redis.call('DEL', KEYS[1])
return dropped
"""
_TAKE = """
if redis.call('EXISTS', KEYS[2]) == 0 then return {-1} end
local expired = 0
local below = tonumber(ARGV[2])
for _, v in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  -- Whatever it is, a generator did not write it.
  if not tonumber(v) then redis.call('ZREM', KEYS[1], v) end
end
for _, v in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. below)) do
  expired = expired + redis.call('LLEN', ARGV[1] .. v)
  redis.call('DEL', ARGV[1] .. v)
  redis.call('ZREM', KEYS[1], v)
end
local versions = redis.call('ZRANGE', KEYS[1], 0, -1)
if ARGV[4] == 'near' then
  -- The newest first; where all that waits can still be taken in time, but not if it waited for
  -- another round, the oldest.
  local waiting, slack = 0, 0
  for _, v in ipairs(versions) do
    local here = redis.call('LLEN', ARGV[1] .. v)
    waiting = waiting + here
    local later = math.max(math.ceil((waiting - tonumber(ARGV[3])) / tonumber(ARGV[8])), 0)
    if here > 0 then slack = math.max(slack, 1 + later - tonumber(v) + below) end
  end
  if slack ~= 1 then versions = redis.call('ZREVRANGE', KEYS[1], 0, -1) end
end
-- One entry per slice that waits, by the version that it is of.
local entries = {}
for _, v in ipairs(versions) do
  for _ = 1, redis.call('LLEN', ARGV[1] .. v) do entries[#entries + 1] = v end
end
if ARGV[4] == 'random' then
  math.randomseed(tonumber(ARGV[5]))
  for i = #entries, 2, -1 do
    local j = math.random(i)
    entries[i], entries[j] = entries[j], entries[i]
  end
end
local result = {expired, 0}
for i = 1, math.min(#entries, tonumber(ARGV[3])) do
  local slice = redis.call('LPOP', ARGV[1] .. entries[i])
  -- What is far too large is not sent: an empty message stands for it.
  if #slice > tonumber(ARGV[6]) then slice = '' end
  result[#result + 1] = slice
end
for _, v in ipairs(versions) do
  if redis.call('LLEN', ARGV[1] .. v) == 0 then redis.call('ZREM', KEYS[1], v) end
end
result[2] = redis.call('INCRBY', KEYS[3], expired + #result - 2)
redis.call('EXPIRE', KEYS[3], ARGV[7])
return result
"""


URL_VARIABLE = "RL_TWOCLOCKS_REDIS_URL"


def address(url: str | None) -> str:
    """The address that is meant: the one given, the environment's, or this machine's."""
    return url or os.environ.get(URL_VARIABLE, "redis://127.0.0.1:6379")


def client(url: str, name: str | None = None) -> redis.Redis:
    """A client for an address, under a name that others can see; nothing is sent yet.

    Raises:
        ConfigError: the address is none.
    """
    try:
        # redis-py's own retries would hide an outage for seconds.
        return redis.Redis.from_url(
            url,
            client_name=name,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=10,
            socket_connect_timeout=5,
        )
    except ValueError:
        # Not the error itself, and not as its cause: it may quote the password.
        raise ConfigError(
            f"{masked(url)} is no address: write redis://host:port or rediss://... in "
            "collect.redis.url, of a generator in url"
        ) from None


class QueueState(NamedTuple):
    """How a queue stands."""

    waiting: int
    """Slices."""
    lost: int
    """Slices that were dropped because it was full."""
    sent: dict[int, int]
    """By process of this machine, the number of its last slice, or question whether there is room."""


class RedisQueue:
    """One run's keys; every call waits for a server that is away, up to `patience` seconds."""

    def __init__(self, url: str, run: str, patience: float, owner: str = "") -> None:
        """Make a client; nothing is sent yet.

        Args:
            url: of the server.
            run: its name.
            patience: seconds.
            owner: of a learner, what it is known by to others: its machine and run directory. While it
                is connected, no other one can begin a sitting of this name.

        Raises:
            ConfigError: the address is none.
        """
        self.run, self.patience = run, patience
        self.taken = 0
        """Slices that the server has given away or dropped as too old, by its own count."""
        self.reached = False
        """Whether the server has ever answered."""
        self.should_stop: Stop = never
        """Asked while a server is waited for."""
        # Quoted, a name is no pattern, and no part of another one's keys.
        self.base = self.prefix = f"rl_twoclocks:{quote(run, safe='')}:"
        self.url = masked(url)
        # The server knows who is connected: no key that a killed learner would leave, none to refresh.
        self.learners = f"{self.base}learner:"
        self.me = self.learners + quote(owner, safe="/:") if owner else None
        self.server = client(url, self.me)
        self.sender, self.sent = f"{platform.node()}/{os.getpid()}-{uuid.uuid4().hex}", 0
        self._push = self.server.register_script(_PUSH)
        self._take = self.server.register_script(_TAKE)
        self._drop = self.server.register_script(_DROP)

    def foreign(self, key: str, why: str) -> str:
        """Say that somebody else wrote what only this run may write."""
        return f"{self.url} holds something else under {self.prefix}{key}: {why}"

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Within this a server that is away is not waited for: calls raise WorkerError."""
        patience, self.patience = self.patience, 0.0
        try:
            yield
        finally:
            self.patience = patience

    def _try(self, call: Callable[[], Result]) -> Result:
        clock, told = WakingClock(), False
        while True:
            try:
                answer = call()
                self.reached = True
                if told:
                    LOG.warning("Redis     %s answers", self.url)
                return answer
            except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
                # In the middle of a run it is no longer the configuration that is to blame.
                kind = WorkerError if self.reached else ConfigError
                # A server that wants a password says so at length.
                why = "it wants a password" if "HELLO" in str(error) else error
                raise kind(
                    f"{self.url} refuses this user ({why}): give the password as "
                    f"redis://user:password@host:port, best in {URL_VARIABLE}"
                ) from error
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if clock.now() >= self.patience or self.should_stop():
                    raise WorkerError(
                        f"no Redis server at {self.url} for {self.patience:g} seconds: {error}"
                    ) from error
                if not told and clock.now() > SILENT:
                    wait = f"waits up to {self.patience:g} s for a server: {error}"
                    LOG.warning("Redis     %s %s", self.url, wait)
                    told = True
                time.sleep(PAUSE)
            except redis.ResponseError as error:
                if not self.reached and "DB index" in str(error):
                    raise ConfigError(f"{self.url}: {error}") from error
                if "WRONGTYPE" in str(error):
                    raise WorkerError(self._mistyped()) from error
                raise WorkerError(f"{self.url} cannot do it: {error}") from error

    def _mistyped(self) -> str:
        """Name the key that somebody else has given another type."""
        with contextlib.suppress(redis.RedisError):
            for key, kind in TYPES.items():
                for place in (self.base + key, self.prefix + key):
                    found: Any = self.server.type(place)
                    if found not in (b"none", kind.encode()):
                        return f"{self.url} holds a {found.decode()} under {place}, not a {kind}"
        return self.foreign("", "a key of another type")

    # -- the learner's side --------------------------------------------------------------------

    def check(self) -> None:
        """Raise now what `open` would, where a server answers; one that is away is not waited for.

        Raises:
            ConfigError: it refuses this user, or a learner of this name is at work elsewhere.
        """
        with self.at_once(), contextlib.suppress(WorkerError):
            self._try(self._refuse_second)

    def open(self, config: str, version: int, policy: bytes) -> None:
        """Begin a sitting: what an earlier one of this name left is dropped.

        Raises:
            ConfigError: a learner of this name is at work, in another run directory.
        """
        self._try(self._open_once)
        self.prefix = f"{self.base}{uuid.uuid4().hex}:"
        self.announce(config, version, policy)

    def _open_once(self) -> None:
        self._refuse_second()
        for key in self.server.scan_iter(self.base + "*"):
            self.server.delete(key)

    def _refuse_second(self) -> None:
        self.server.ping()
        for client in self._clients():
            name = client.get("name", "")
            if self.me and name.startswith(self.learners) and name != self.me:
                other = unquote(name.removeprefix(self.learners))
                raise ConfigError(
                    f"run {self.run!r} on {self.url} belongs to a learner at work, {other}: write "
                    "another collect.redis.run"
                )

    def _clients(self) -> list[dict[str, str]]:
        """Who is connected; nobody where the server does not tell this user."""
        try:
            found: Any = self.server.client_list()
        except redis.ResponseError:
            return []
        return found

    def announce(self, config: str, version: int, policy: bytes, orders: str = "{}") -> None:
        """Say what the run is, what its newest policy is, and what generators are to do.

        Raises:
            WorkerError: another learner has begun a sitting of this name since.
        """

        def write() -> None:
            sitting: Any = self.server.get(self.base + "sitting")
            if sitting not in (None, self.prefix.encode()):
                raise WorkerError(
                    f"another learner has taken over run {self.run!r} on {self.url}: give each one "
                    "a collect.redis.run of its own"
                )
            pipe = self.server.pipeline(transaction=True)
            pipe.set(self.base + "sitting", self.prefix, ex=LIFE)
            pipe.set(self.prefix + "config", config, ex=LIFE)
            pipe.set(self.prefix + "policy", policy, ex=LIFE)
            pipe.set(self.prefix + "version", version, ex=LIFE)
            pipe.set(self.prefix + "orders", orders, ex=LIFE)
            pipe.execute()

        self._try(write)

    def take(
        self,
        wanted: int,
        version: int,
        max_staleness: int | None,
        order: str,
        draw: int,
        per_round: int | None = None,
        largest: int = 2**29,
    ) -> tuple[list[bytes], int] | None:
        """At most `wanted` slices, and how many were dropped; None if the run is gone.

        Later rounds take `per_round` slices each; None: as many as this one.
        Dropped are those that are too old, and those whose reply was lost on its way. A message of more
        than `largest` bytes is dropped and comes as an empty one. `fifo` goes by version, and by arrival
        within one.

        A server that was started anew has forgotten everything: announce the run again.
        """
        oldest = -(2**31) if max_staleness is None else version - max_staleness
        keys = [self.prefix + key for key in ("versions", "config", "taken")]
        arguments: list[Any] = [self.prefix + "slices:", oldest, wanted, order, draw, largest, LIFE]
        arguments.append(wanted if per_round is None else per_round)
        result: Any = self._try(lambda: self._take(keys, arguments))
        if result[0] == -1:
            self.taken = 0
            return None
        expired, taken, *slices = result
        # What was taken when the reply was lost is gone; a server that was started anew counts from 0.
        lost = max(int(taken) - self.taken - int(expired) - len(slices), 0)
        self.taken = int(taken)
        return slices, int(expired) + lost

    def readings(self) -> QueueState:
        """What waits, was dropped and was sent; keeps the sitting from expiring."""

        def ask() -> QueueState:
            pipe = self.server.pipeline(transaction=False)
            pipe.expire(self.base + "sitting", LIFE)
            for key in ("config", "policy", "version", "orders", "generators"):
                pipe.expire(self.prefix + key, LIFE)
            pipe.execute()
            versions: Any = self.server.zrange(self.prefix + "versions", 0, -1)
            lists = [f"{self.prefix}slices:{v.decode(errors='replace')}" for v in versions]
            waiting = sum(int(self.server.llen(name)) for name in lists)  # type: ignore[arg-type]
            lost = int(self.server.get(self.prefix + "lost") or 0)  # type: ignore[arg-type]
            senders: Any = self.server.hgetall(self.prefix + "sent")
            mine = platform.node().encode()
            sent = {}
            for sender, number in senders.items():
                node, _, rest = sender.rpartition(b"/")
                pid = rest.partition(b"-")[0]
                if node == mine and pid.isdigit() and number.isdigit():
                    sent[int(pid)] = int(number)
            return QueueState(waiting, lost, sent)

        return self._try(ask)

    def drop_all(self) -> int:
        """Drop what waits; how many slices it was."""
        keys, arguments = [self.prefix + "versions"], [self.prefix + "slices:"]
        return int(self._try(lambda: self._drop(keys, arguments)))

    def close(self) -> None:
        """Take the sitting off the server, if it is there: generators see it and end."""
        with contextlib.suppress(redis.RedisError):
            # Not what another learner of this name has announced since.
            if self.server.get(self.base + "sitting") == self.prefix.encode():
                self.server.delete(self.base + "sitting")
                self.server.set(self.base + "over", 1, ex=LIFE)
            # One that never began has no keys of its own.
            if self.prefix != self.base:
                for key in self.server.scan_iter(self.prefix + "*"):
                    self.server.delete(key)
        self.server.close()

    # -- the generator's side ------------------------------------------------------------------

    def find(self) -> str | None:
        """Join the run's newest sitting: its configuration as JSON; None if there is no such run."""
        sitting: Any = self._try(lambda: self.server.get(self.base + "sitting"))
        if sitting is None:
            return None
        self.prefix = sitting.decode(errors="replace")
        text: Any = self._try(lambda: self.server.get(self.prefix + "config"))
        return None if text is None else text.decode(errors="replace")

    def over(self) -> bool:
        """Whether a learner of this run has ended; a server that was started anew knows of none."""
        return bool(self._try(lambda: self.server.exists(self.base + "over")))

    def join(self) -> int:
        """A number that no other generator of the sitting has."""

        def count() -> Any:
            pipe = self.server.pipeline(transaction=True)
            pipe.incr(self.prefix + "generators")
            pipe.expire(self.prefix + "generators", LIFE)
            return pipe.execute()[0]

        return int(self._try(count)) - 1

    def news(self) -> tuple[int, dict[str, Any]] | None:
        """The newest published version, and orders; None if the sitting is over.

        Raises:
            WorkerError: something else lies there.
        """
        keys = [self.prefix + key for key in ("version", "orders")]
        found: Any = self._try(lambda: self.server.mget(keys))
        version, orders = found
        if version is None:
            return None
        try:
            return int(version), dict(json.loads(orders or b"{}"))
        except (ValueError, TypeError) as error:
            raise WorkerError(self.foreign("version or orders", repr(error))) from error

    def policy(self) -> bytes | None:
        """The newest policy; None if the sitting is over."""
        found: Any = self._try(lambda: self.server.get(self.prefix + "policy"))
        return found

    def room(self, bound: int) -> bool:
        """Whether fewer than `bound` slices wait and the sitting goes on."""
        return self.push(b"", 0, bound, "wait")

    def push(self, message: bytes, version: int, bound: int, when_full: str) -> bool:
        """Put a slice into its version's partition.

        False if the queue is full and `when_full` is wait, or if the sitting is over.
        """
        keys = [self.prefix + key for key in ("versions", "lost", "config", "sent")]
        self.sent += 1
        arguments: list[Any] = [self.prefix + "slices:", version, bound, when_full, message, LIFE]
        arguments += [self.sender, self.sent]
        return bool(self._try(lambda: self._push(keys, arguments)))
