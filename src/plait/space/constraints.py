"""Constraints as text: `inner >= int(1.7 * d)`, `4M <= decoder_params <= 100M`, `state <= 2MB`, `count(attn) >= 1`.

A constraint compares arithmetic expressions. It applies to layers or to candidates, depending on the names in it:

    layer        names of options (`inner`, `heads`), or of the options of one mixer (`mlp.inner`; underscores for
                 hyphens: `gated_deltanet.head_dim`), `d` and fixed header keys. Must hold for every layer that has them
    candidate    header keys, `layers`, `count(mixer)`, exact columns (`decoder_params`, `flops`, `state`, …) and
                 predicted objectives (`latency`, `memory`)

Numbers may have units: K M G T (thousands), KB MB GB and KiB MiB GiB (bytes), us ms s (seconds). The names used by
LiteTransformerSearch are aliases: d_model, d_inner (or d_ff), n_layer and n_head.

`Limits` are upper bounds on quantities as given on the command line: `40ms`, `300MB`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError, did_you_mean
from plait.core.units import parse, replace_units
from plait.device.quantities import QUANTITIES, on_device, quantity
from plait.mixers.table import names as mixers

Mask = NDArray[np.bool_]
#: A constraint written in Python: columns with one entry per candidate → whether each candidate satisfies it.
Check = Callable[[Mapping[str, Any]], Mask]

KINDS = ("sequence", "channel")  # count(sequence) counts all mixers of a kind
ALIASES = {"d_model": "d", "d_inner": "inner", "d_ff": "inner", "n_layer": "layers", "n_head": "heads"}

_ARITHMETIC: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_COMPARE: dict[type[ast.AST], Callable[..., Any]] = {
    ast.LtE: operator.le,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
    ast.Gt: operator.gt,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"int": np.trunc, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class Constraint:
    """One constraint. `names` are the quantities in it; `check` takes their values, numbers or arrays."""

    text: str
    names: frozenset[str]
    check: Check = field(compare=False, repr=False)
    #: For every comparison, the ratio of the side that should be smaller to the other.
    sides: Callable[[Mapping[str, Any]], list[Any]] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Constraint:
        tree = _read(text)
        names = frozenset(_names(tree, text))
        _require_numbers(tree, text)
        return cls(
            _tidy(text),
            names,
            lambda values: np.asarray(_evaluate(tree, values), dtype=np.bool_),
            lambda values: _ratios(tree, values),
        )

    @classmethod
    def of(cls, text: str, names: Collection[str], check: Check) -> Constraint:
        """A constraint written in Python; `text` is its name in messages."""
        return cls(text, frozenset(names), check)

    def __str__(self) -> str:
        return self.text

    def excess(self, values: Mapping[str, Any]) -> NDArray[np.float64]:
        """The factor by which the constraint is violated: 1 if it holds, infinite if there is no such factor."""
        holds = self.check(values)
        if self.sides is None:
            return np.where(holds, 1.0, np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.maximum.reduce([np.asarray(side, dtype=np.float64) for side in self.sides(values)])
        return np.where(holds, 1.0, np.where(np.isfinite(ratio) & (ratio > 1), ratio, np.inf))


def as_constraint(constraint: str | Constraint) -> Constraint:
    return constraint if isinstance(constraint, Constraint) else Constraint.parse(constraint)


def check_names(constraint: Constraint, known: Collection[str]) -> None:
    """Raise a `UserError` for a constraint on something that is neither known nor computed here."""
    for name in sorted(constraint.names):
        if name.startswith("count("):
            if (mixer := name[6:-1]) not in (*mixers(), *KINDS):
                raise UserError(
                    f"constraint '{constraint}': there is no mixer '{mixer}'.{did_you_mean(mixer, mixers())}"
                )
        elif name not in known:
            near = did_you_mean(name, known)
            raise UserError(
                f"constraint '{constraint}': unknown name '{name}'.{near} Known here: {', '.join(sorted(known))}."
            )


def failures(passed: Mapping[str, Mask], total: int) -> str:
    """Explain why no candidate is feasible: for each constraint the number of samples that satisfy it and that violate
    only it, the hardest constraint first."""
    if not passed:
        return "there are no constraints, and no candidates either."
    every = np.stack([np.broadcast_to(mask, total) for mask in passed.values()])
    failed_by = (~every).sum(axis=0)
    lines = []
    for text, mask in sorted(zip(passed, every, strict=True), key=lambda pair: int(pair[1].sum())):
        alone = int((~mask & (failed_by == 1)).sum())
        if not mask.all():
            lines.append(f"{int(mask.sum()):,} of {total:,} samples satisfy {text}; {alone:,} fail it alone")
    return "\n".join(lines)


def _tidy(text: str) -> str:
    return " ".join(text.split())


def _read(text: str) -> ast.Compare:
    plain = replace_units(text.strip())
    try:
        tree = ast.parse(plain, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(
            f"constraint '{_tidy(text)[:200]}' cannot be parsed; write for example decoder_params <= 20M."
        ) from None
    if not isinstance(tree, ast.Compare):
        raise UserError(f"constraint '{_tidy(text)}' compares nothing; write for example decoder_params <= 20M.")
    return tree


def _names(tree: ast.AST, text: str) -> set[str]:
    """The names in an expression; raises a `UserError` for anything but arithmetic and comparisons."""
    if isinstance(tree, ast.Name | ast.Attribute) or _is_count(tree):
        return {_name(tree)}
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float) and not isinstance(tree.value, bool):
        return set()
    parts: list[ast.AST]
    if isinstance(tree, ast.BinOp) and type(tree.op) in _ARITHMETIC:
        parts = [tree.left, tree.right]
    elif isinstance(tree, ast.UnaryOp) and type(tree.op) in _ARITHMETIC:
        parts = [tree.operand]
    elif isinstance(tree, ast.Compare) and all(type(op) in _COMPARE for op in tree.ops):
        parts = [tree.left, *tree.comparators]
    elif isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in _FUNCTIONS:
        wanted = 1 if tree.func.id == "int" else 2
        if len(tree.args) != wanted or tree.keywords:
            raise UserError(f"constraint '{_tidy(text)}': {tree.func.id} takes {wanted} argument{'s' * (wanted > 1)}.")
        parts = list(tree.args)
    else:
        allowed = "numbers, names, + - * / // %, comparisons, int(), min(), max() and count()"
        raise UserError(f"constraint '{_tidy(text)}': cannot use '{ast.unparse(tree)}'; allowed are {allowed}.")
    return set().union(*(_names(part, text) for part in parts))


def _require_numbers(tree: ast.AST, text: str) -> None:
    """Raise a `UserError` for constants that are not finite: division by zero, overflow."""
    for part in ast.walk(tree):
        if isinstance(part, ast.BinOp | ast.Constant | ast.Call | ast.UnaryOp) and not _names(part, text):
            try:
                fine = math.isfinite(float(_evaluate(part, {})))
            except ArithmeticError:
                fine = False
            if not fine:
                raise UserError(f"constraint '{_tidy(text)[:200]}': '{ast.unparse(part)[:40]}' is not a number.")


def _is_count(tree: ast.AST) -> bool:
    return isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "count"


def _name(tree: ast.AST) -> str:
    # Hyphens in mixer names parse as minus signs: count(gated-deltanet) is unparsed with spaces.
    written = ast.unparse(tree).replace(" ", "")
    mixer, dot, option = written.rpartition(".")
    return f"{mixer}{dot}{ALIASES.get(option, option)}"


def _evaluate(tree: ast.AST, values: Mapping[str, Any]) -> Any:
    if isinstance(tree, ast.Constant):
        return tree.value
    if isinstance(tree, ast.Name | ast.Attribute) or _is_count(tree):
        return values[_name(tree)]
    if isinstance(tree, ast.BinOp):
        return _ARITHMETIC[type(tree.op)](_evaluate(tree.left, values), _evaluate(tree.right, values))
    if isinstance(tree, ast.UnaryOp):
        return _ARITHMETIC[type(tree.op)](_evaluate(tree.operand, values))
    if isinstance(tree, ast.Call):
        assert isinstance(tree.func, ast.Name)
        return _FUNCTIONS[tree.func.id](*(_evaluate(argument, values) for argument in tree.args))
    assert isinstance(tree, ast.Compare)
    sides = [_evaluate(side, values) for side in (tree.left, *tree.comparators)]
    holds: Any = True
    for op, left, right in zip(tree.ops, sides, sides[1:], strict=False):
        holds = holds & _COMPARE[type(op)](left, right)
    return holds


def _ratios(tree: ast.Compare, values: Mapping[str, Any]) -> list[Any]:
    sides = [np.asarray(_evaluate(side, values), dtype=np.float64) for side in (tree.left, *tree.comparators)]
    pairs = zip(tree.ops, sides, sides[1:], strict=False)
    return [left / right if isinstance(op, ast.LtE | ast.Lt) else right / left for op, left, right in pairs]


@dataclass(frozen=True, init=False)
class Limits:
    """Upper bounds on quantities by name, in base units: `Limits(latency=0.04)`. Quantities of the device are predicted
    during the search and measured afterwards; the others are exact."""

    values: tuple[tuple[str, float], ...]

    def __init__(self, **limits: float | None) -> None:
        for name in limits:
            QUANTITIES.require(name)
        ordered = ((name, limits[name]) for name in QUANTITIES if name in limits)
        object.__setattr__(self, "values", tuple((name, limit) for name, limit in ordered if limit is not None))

    @classmethod
    def read(cls, tokens_per_second: float | None = None, /, **limits: str | float | None) -> Limits:
        """From the user's options: 40ms, 300MB, or numbers of seconds and bytes. `tokens_per_second` is a lower bound,
        converted to a limit on the time per token."""
        if tokens_per_second is not None:
            if limits.get("token_time") is not None:
                raise UserError("--tokens-per-second and --token-time mean the same: give one of them.")
            if not 0 < tokens_per_second < math.inf:
                raise UserError(f"--tokens-per-second {tokens_per_second:g}: must be greater than 0 and finite.")
            limits["token_time"] = 1 / tokens_per_second

        def value(name: str, limit: str | float | None) -> float | None:
            QUANTITIES.require(name)
            if isinstance(limit, str):
                return parse(limit, quantity(name).dimension, name)
            if limit is not None and not 0 <= limit < math.inf:
                raise UserError(f"{name} {limit:g} given; a limit is finite and not negative.")
            return None if limit is None else float(limit)

        return cls(**{name: value(name, limit) for name, limit in limits.items()})

    @property
    def on_device(self) -> dict[str, float]:
        """The limits that have to be validated by measurement."""
        return {name: limit for name, limit in self.values if name in on_device()}

    def constraints(self) -> list[str]:
        """The limits as constraints of a search: the upper end of a prediction's interval must be within the limit."""
        return [f"{quantity(name).upper} <= {quantity(name).text(limit)}" for name, limit in self.values]

    def exceeded(self, values: Mapping[str, float]) -> list[str]:
        """A message for each limit that these values (in base units) exceed."""
        return [
            f"{name} {quantity(name).text(values[name], 5)}, not {quantity(name).text(limit)}"
            for name, limit in self.values
            if name in values and values[name] > limit
        ]

    def as_dict(self) -> dict[str, float]:
        return dict(self.values)
