"""Reads all GPUs, and starts NVML again after it has failed."""

from __future__ import annotations

from typing import Final

from scheduler.agent.gpu.nvml import NoNvml, NvmlSession, Reading

#: After this long without NVML it is started again.
RETRY_SECONDS: Final = 30.0


class GpuReader:
    """One NVML session at a time; `now` is on the monotonic clock."""

    def __init__(self) -> None:
        self._session: NvmlSession | None = None
        self._failed_at = 0.0
        self._failure = ""

    def read(self, now: float) -> tuple[list[Reading], str]:
        """The readings, and what is wrong with NVML or with GPUs that it cannot name; empty when nothing is."""
        if self._session is None and self._failed_at and now - self._failed_at < RETRY_SECONDS:
            return [], self._failure
        try:
            if self._session is None:
                self._session = NvmlSession()
            return self._session.read(), _unnamed(self._session)
        except NoNvml as error:
            self.close()
            self._failed_at, self._failure = now, str(error)
            return [], self._failure

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _unnamed(session: NvmlSession) -> str:
    """GPUs that were lost before the session could read their UUID; the ones known from before count as missing."""
    return "; ".join(f"GPU {index}: {why}" for index, why in session.unnamed)
