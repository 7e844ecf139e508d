"""A Redis cache that is only a hint: while Redis is away, every read misses and every write is dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from django.core.cache.backends.redis import RedisCache, RedisCacheClient
from redis.exceptions import RedisError

from infra.circuits.memory import redis_circuit, redis_raised

log = logging.getLogger(__name__)

# A bucket that refills by itself, by the clock of the server, which all who ask share: how many were taken, for how
# long there is none, and how many are left.
TAKE = """
local rate, burst, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local kept = redis.call('HMGET', KEYS[1], 'left', 'at')
local left = tonumber(kept[1]) or burst
left = math.min(burst, left + math.max(0, now - (tonumber(kept[2]) or now)) * rate)
local taken = math.min(most, math.floor(left))
local wait = 0
if taken < 1 then wait = (1 - left) / rate else left = left - taken end
redis.call('HSET', KEYS[1], 'left', left, 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000) + 1000)
return {taken, string.format('%.6f', wait), math.floor(left)}
"""


class OneClient(RedisCacheClient):
    """Keeps its client: making one takes longer than asking it, and it may be used by all threads."""

    def __init__(self, servers: list[str], **options: Any) -> None:
        super().__init__(servers, **options)
        self._clients: dict[int, Any] = {}

    def get_client(self, key: Any = None, *, write: bool = False) -> Any:
        pool = self._get_connection_pool(write)  # type: ignore[attr-defined]
        client = self._clients.get(id(pool))
        if client is None:
            client = self._clients[id(pool)] = self._client(connection_pool=pool)  # type: ignore[attr-defined]
        return client


class QuietRedisCache(RedisCache):
    """Django's Redis cache, without its errors."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._class = OneClient
        self._take: Any = None

    def _try(self, call: Callable[[], Any], otherwise: Any) -> Any:
        if not redis_circuit.may_call():
            return otherwise
        try:
            found = call()
        except (RedisError, OSError) as error:
            redis_raised(error)
            log.warning("cache is away, going on without it: %s", error)
            return otherwise
        redis_circuit.answered()
        return found

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        return self._try(lambda: RedisCache.get(self, key, default, version), default)

    def set(self, key: Any, value: Any, *args: Any, **kwargs: Any) -> None:
        self._try(lambda: RedisCache.set(self, key, value, *args, **kwargs), None)

    def add(self, key: Any, value: Any, *args: Any, **kwargs: Any) -> bool:
        return bool(self._try(lambda: RedisCache.add(self, key, value, *args, **kwargs), True))

    def touch(self, key: Any, *args: Any, **kwargs: Any) -> bool:
        return bool(self._try(lambda: RedisCache.touch(self, key, *args, **kwargs), False))

    def delete(self, key: Any, version: int | None = None) -> bool:
        return bool(self._try(lambda: RedisCache.delete(self, key, version), False))

    def get_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        found: dict[Any, Any] = self._try(lambda: RedisCache.get_many(self, keys, version), {})
        return found

    def has_key(self, key: Any, version: int | None = None) -> bool:
        return bool(self._try(lambda: RedisCache.has_key(self, key, version), False))

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        return int(self._try(lambda: RedisCache.incr(self, key, delta, version), delta))

    def set_many(self, data: dict[Any, Any], *args: Any, **kwargs: Any) -> list[Any]:
        failed: list[Any] = self._try(lambda: RedisCache.set_many(self, data, *args, **kwargs), list(data))
        return failed

    def delete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        self._try(lambda: RedisCache.delete_many(self, keys, version), None)

    def clear(self) -> bool:  # type: ignore[override]  # so says Django's own
        return bool(self._try(lambda: RedisCache.clear(self), False))

    def take(self, key: str, *, rate: float, burst: int, most: int = 1) -> tuple[int, float, int] | None:
        """Take up to `most` tokens from a bucket that refills: the number taken, the wait in seconds, the number left.

        None while Redis is away.
        """
        name = self.make_and_validate_key(key)

        def ask() -> tuple[int, float, int]:
            if self._take is None:
                self._take = self._cache.get_client(name, write=True).register_script(TAKE)
            taken, wait, left = self._take(keys=[name], args=[rate, burst, most])
            return int(taken), float(wait), int(left)

        answer: tuple[int, float, int] | None = self._try(ask, None)
        return answer
