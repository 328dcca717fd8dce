"""What a mixer that is not plait's own must declare, checked when its file or package is loaded: a missing method or a
wrong signature would otherwise be noticed only where it is first used, for instance by `generate` after a training."""

from __future__ import annotations

import inspect
from typing import Any

from plait.core.errors import UserError, did_you_mean
from plait.mixers.options import MixerOptions

KINDS = ("sequence", "channel")
_SIZES = (None, 64, 16, 0)  # self, d, seq and memory, as plait calls `cost`
#: Methods as plait calls them: how a user declares each, and the arguments of the call (the first is self).
_METHODS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "__init__": ("(self, d, options)", (None, 64, None), {}),
    "forward": ("(self, x_BTD)", (None, None), {}),
    "init_state": ("(self, batch, *, rollback=0)", (None, 1), {"rollback": 0}),
    "step": ("(self, x_BD, state)", (None, None, {}), {}),
    "extend": ("(self, x_BTD, state)", (None, None, {}), {}),
}


def require_options(options: Any, where: str) -> type[MixerOptions]:
    """The options class of a mixer, or `UserError` that says what it lacks; `where` names the mixer in messages."""
    if not (isinstance(options, type) and issubclass(options, MixerOptions)):
        raise UserError(f"{where} has no `Options` (a subclass of plait.mixers.options.MixerOptions).")
    for wanted, value in (("name", options.name), ("kind", options.kind)):
        if not value:
            raise UserError(f"{where}.Options has no `{wanted}`; add it as a class attribute.")
    if options.kind not in KINDS:
        near = did_you_mean(options.kind, KINDS)
        raise UserError(f"{where}.Options.kind is '{options.kind}'.{near} Allowed: {', '.join(KINDS)}.")
    if options.cost is MixerOptions.cost:
        raise UserError(f"{where}.Options has no `cost`; add cost(self, d, seq, memory=0), which returns a Cost.")
    _require_call(options.cost, _SIZES, {}, f"{where}.Options.cost", "(self, d, seq, memory=0)")
    return options


def require_methods(mixer: type, where: str) -> None:
    """Raise `UserError` if the module lacks a method, or has one that cannot be called as plait calls it."""
    missing = sorted(getattr(mixer, "__abstractmethods__", ()))
    if missing:
        declared = ", ".join(f"{name}{_METHODS[name][0]}" if name in _METHODS else name for name in missing)
        raise UserError(f"{where} lacks {declared}; add {'it' if len(missing) == 1 else 'them'}.")
    for name, (signature, values, keywords) in _METHODS.items():
        _require_call(getattr(mixer, name), values, keywords, f"{where}.{name}", signature)


def _require_call(function: Any, values: tuple[Any, ...], keywords: dict[str, Any], where: str, signature: str) -> None:
    try:
        inspect.signature(function).bind(*values, **keywords)
    except TypeError as wrong:
        raise UserError(f"{where} cannot be called as {signature}: {wrong}. Declare it so.") from None
