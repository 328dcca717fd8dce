"""plait designs language-model architectures by measurement. The front door: one function per verb.

Nothing is imported before it is asked for: `import plait` takes milliseconds and no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plait.api.describe import architecture, build, cost
    from plait.core.errors import UserError
    from plait.model.user_mixers import load_mixer
    from plait.records.store import open_store

__version__ = "0.1.0"

#: name → where it is; what users import, and all that most of them need.
DOOR: dict[str, str] = {
    "UserError": "plait.core.errors",
    "architecture": "plait.api.describe",
    "build": "plait.api.describe",
    "cost": "plait.api.describe",
    "load_mixer": "plait.model.user_mixers",
    "open_store": "plait.records.store",
}
#: Verbs with several functions, as `plait.front.pick`: name → the module that has them.
GROUPS: dict[str, str] = {}
__all__ = [
    "UserError",
    "__version__",
    "architecture",
    "build",
    "cost",
    "load_mixer",
    "open_store",
]


def __getattr__(name: str) -> Any:
    if name in GROUPS:
        return import_module(GROUPS[name])
    if name not in DOOR:
        raise AttributeError(f"module 'plait' has no attribute '{name}'")
    return getattr(import_module(DOOR[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *DOOR, *GROUPS})
