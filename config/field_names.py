"""Names of fields as admin pages show them: abbreviations in capitals, units in parentheses."""

from __future__ import annotations

from typing import Final

from django.apps import apps

_CAPITALS: Final = {
    "cpu": "CPU", "cpus": "CPUs", "gpu": "GPU", "gpus": "GPUs", "id": "ID", "ids": "IDs", "numa": "NUMA",
    "uuid": "UUID", "url": "URL", "qos": "QoS", "sha256": "SHA-256", "pid": "PID",
}  # fmt: skip
#: The last word of a name -> the unit that it stands for.
_UNITS: Final = {
    "millis": "thousandths", "mib": "MiB", "bytes": "bytes", "seconds": "s", "ms": "ms", "us": "µs", "percent": "%",
    "c": "°C", "watts": "W", "micros": "millionths",
}  # fmt: skip
_APPS: Final = ("accounts", "infra", "notifications", "quotas", "scheduler")


def readable(name: str) -> str:
    """`gpu_memory_mib` as `GPU memory (MiB)`, `held_at` as `held at`."""
    *words, last = name.split("_")
    if words and last in _UNITS:
        return f"{' '.join(_CAPITALS.get(word, word) for word in words)} ({_UNITS[last]})"
    return " ".join(_CAPITALS.get(word, word) for word in (*words, last))


def name_fields() -> None:
    """Give every field without a name of its own a readable one; migrations keep no trace of these names."""
    for label in _APPS:
        for model in apps.get_app_config(label).get_models():
            for field in model._meta.local_fields:
                if "verbose_name" not in field.deconstruct()[3]:
                    field.verbose_name = readable(field.name)
