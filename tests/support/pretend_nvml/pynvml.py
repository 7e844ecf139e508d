"""Found by an agent that is started with this folder in its path: two GPUs, the second of them worn out."""

from tests.support.nvml import FakeNvml, some_gpus

_first, _second = some_gpus(2)
_second.rows = (0, 8, 0, 1)
_fake = FakeNvml(_first, _second)
globals().update({name: getattr(_fake, name) for name in dir(_fake) if not name.startswith("_")})
