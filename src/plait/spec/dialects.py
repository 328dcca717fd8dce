"""Placement patterns: a few numbers in, a pattern of blocks out.

PAR (Mandava et al. 2020, arXiv:2009.04534, section 2.3) for n blocks and the coefficient p:
  1. attention is needed only among the first 2n/3 blocks, 2. one attention block per p blocks suffices, and these are
     placed uniformly.
This is interpreted as: a = n/p attention blocks, rounded (halves down, since the aim is few), the first at block 1, the
others at the widest even spacing that keeps all of them within the first ⌊2n/3⌋. With p = 5 this gives the published
patterns of 32 blocks, (sfff)x6 (f)x8, and of 24, (sff)x5 (f)x9. For 36 it gives (sff)x7 (f)x15, whereas the paper
trained (sfff)x7 (f)x8: there the seventh attention is block 25, outside the first 24, so the paper breaks its own first
rule. For that model, write `par:(sfff)x7 (f)x8`. Other searches find other fractions than the first two thirds:
`within` sets it (`plait.analysis.placement` fits it).

Sandwich (Press et al. 2020, arXiv:1911.03864) with n pairs and the coefficient k: k attention blocks, n - k pairs of
attention and feed-forward, k feed-forward blocks.

Stripe: a ratio such as 1A:3H repeated and truncated to n blocks.

Dialects: other people's notations for architectures, read as groups of layers.

`par:(sfff)x6 (f)x8`      strings of blocks as in the PAR Transformer, Tables 1-3 (Mandava et al. 2020,
                          arXiv:2009.04534): s attention, f feed-forward, i identity.
`mad:(2H:4A:4H:2A)x2`     stripes as in Mechanistic Architecture Design, Table D.1 (Poli et al. 2024,
                          arXiv:2403.17844): a count and a letter; every counted letter is one block.
`megatron:M-M*-ME`        Megatron's `--hybrid-layer-pattern`: M Mamba-2, G Gated DeltaNet, * attention, D attention by
                          a learned index, + latent attention, - MLP, E experts.
`rule:par(n=32,p=5)`      a placement pattern that gives such a string (`plait.spec.dialects`).

The meaning of a letter can be defined in place: `par[s=attn[heads=8],f=swiglu]:(sf)x6`, with several layers in
parentheses: `mad[A=(attn mlp)]:6A`. A par or mad pattern extends to the end of the text or of the enclosing
parenthesis, so put parentheses around it if something follows: `(par:(sf)x3) attn`. A placement pattern ends with its
own parenthesis.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import ceil

from plait.core.errors import UserError
from plait.spec.errors import MAX_LAYERS, Where, quoted
from plait.spec.header import parse_int
from plait.spec.nodes import Layer, Node, Repeat
from plait.spec.parser import Scanner, read_sequence

# name -> (required arguments, optional arguments)
PLACEMENT_PATTERNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "par": (("n",), ("p", "within")),
    "sandwich": (("k", "n"), ()),
    "stripe": (("n",), ()),
}
FRACTIONAL = ("p", "within")  # the arguments that need not be integers
TWO_THIRDS = 2 / 3


def par_pattern(n: int, p: float = 5, within: float = TWO_THIRDS) -> str:
    """n letters s (attention) and f (feed-forward) by the two PAR rules, the first with this fraction of the blocks."""
    _check_blocks(n)
    if p <= 0:
        raise UserError(f"p={p:g}: must be greater than 0")
    if not 0 < within <= 1:
        raise UserError(f"within={within:g}: must be above 0 and at most 1")
    attention, room = par_attention(n, p), par_room(n, within)
    if attention > room:
        remedy = "raise p" if within == 1 else "raise p or within"
        raise UserError(
            f"p={p:g}: {attention:,} attention blocks do not fit into the first {room:,} of {n:,}; {remedy}"
        )
    spacing = (room - 1) // (attention - 1) if attention > 1 else n
    return "".join("s" if at % spacing == 0 and at < attention * spacing else "f" for at in range(n))


def par_attention(n: int, p: float) -> int:
    """How many of n blocks are attention."""
    return max(1, ceil(n / Fraction(p) - Fraction(1, 2)))


def par_room(n: int, within: float) -> int:
    """How many of the first blocks may be attention."""
    # The intended fraction: as floats, 0.7 and 2/3 are slightly smaller.
    share = Fraction(within).limit_denominator(MAX_LAYERS)
    return max(1, int(n * share))


def sandwich_pattern(k: int, n: int) -> str:
    """2n letters: k times s, n - k times sf, k times f."""
    _check_blocks(2 * n)
    if not 0 <= k <= n:
        raise UserError(f"k={k}: must be between 0 and n={n}")
    return "s" * k + "sf" * (n - k) + "f" * k


def stripe_blocks(ratio: list[tuple[int, str]], n: int) -> list[str]:
    """n letters: the (count, letter) pairs of the ratio, repeated and truncated to n."""
    _check_blocks(n)
    once: list[str] = []
    for count, letter in ratio:
        once += [letter] * min(count, n - len(once))
    return (once * (n // len(once) + 1))[:n]


def _check_blocks(n: int) -> None:
    if not 1 <= n <= MAX_LAYERS:
        raise UserError(f"{n:,} blocks: a placement pattern takes 1 to {MAX_LAYERS:,}")


ItemReader = Callable[[Scanner], Node]  # reads one layer or group of the plain language
Letters = Mapping[str, Node]

_SWIGLU = Layer("swiglu")
_PAR_BLOCKS = {
    "s": (Layer("xl-attn"),),
    "f": (Layer.of("mlp", act="relu"),),
    "i": (Layer("identity"),),
}
_MAD_BLOCKS = {
    "a": (Layer("attn"), _SWIGLU),
    "h": (Layer("hyena"), _SWIGLU),
    "mh": (Layer("mh-hyena"), _SWIGLU),
    "g": (Layer("gla"), _SWIGLU),
    # Mamba includes channel mixing: two of them make a block as deep as the others.
    "m": (Layer("mamba"), Layer("mamba")),
}
_MEGATRON_BLOCKS = {
    "m": (Layer("mamba2"),),
    "g": (Layer("gated-deltanet"),),
    "*": (Layer("attn"),),
    "d": (Layer("sparse-attn"),),
    "+": (Layer("mla"),),
    "-": (Layer("mlp"),),
    "e": (Layer("moe"),),
}
_LETTER = re.compile(r"[A-Za-z]{1,8}")
_TERM = re.compile(r"([0-9][0-9_]*)?([A-Za-z]{1,8})(?![A-Za-z0-9_.-])")


def read_dialect(scan: Scanner, name: str, start: int, read_item: ItemReader) -> Node:
    """Read the rest of `par…`, `mad…` or `rule…`, with the cursor after the name, which started at `start`."""
    defined = _read_definitions(scan, name, read_item) if scan.peek() == "[" else {}
    if not scan.take(":"):
        example = {
            "par": "par:(sfff)x6",
            "mad": "mad:(1H:1A)x6",
            "megatron": "megatron:(M-)x3 *-",
            "rule": "rule:par(n=32)",
        }[name]
        raise scan.error(f"expected ':' after '{name}', found {scan.found()}; write {example}")
    where = scan.where(start)
    scan.skip()
    if name == "rule":
        return _read_placement_pattern(scan, where, defined)
    if name in ("par", "megatron"):
        letters = _letters(_PAR_BLOCKS if name == "par" else _MEGATRON_BLOCKS, where, defined)
        nodes = read_sequence(scan, lambda s: _read_par_letter(s, letters))
    else:
        letters = _letters(_MAD_BLOCKS, where, defined)
        nodes = read_sequence(scan, lambda s: _read_mad_term(s, letters), separators=":")
    if not nodes:
        raise scan.error(f"'{name}:' without blocks", start)
    return Repeat(nodes, 1, where)


def _letters(defaults: Mapping[str, tuple[Layer, ...]], where: Where, defined: Letters) -> Letters:
    known: dict[str, Node] = {
        letter: Repeat(tuple(Layer(layer.name, layer.options, where) for layer in layers), 1, where)
        for letter, layers in defaults.items()
    }
    return {**known, **defined}


def _read_definitions(scan: Scanner, dialect: str, read_item: ItemReader) -> dict[str, Node]:
    """`[s=attn[heads=8], f=(swiglu mlp)]`, with the cursor at its bracket."""
    opening = scan.at
    scan.at += 1
    defined: dict[str, Node] = {}
    with scan.nested(opening):
        while True:
            scan.skip(",")
            if scan.take("]"):
                return defined
            if not scan.peek():
                raise scan.error("this '[' is never closed", opening)
            at = scan.at
            letter = scan.name("a letter to define")
            if letter == "x" or not _LETTER.fullmatch(letter) or (dialect in ("par", "megatron") and len(letter) > 1):
                limit = "one letter" if dialect in ("par", "megatron") else "up to 8 letters"
                raise scan.error(f"cannot define {quoted(letter)}: {limit}, and not x, which repeats", at)
            if letter in defined:
                raise scan.error(f"{quoted(letter)} is defined twice", at)
            scan.skip()
            scan.expect("=", f"'{letter}'")
            scan.skip()
            defined[letter.lower() if dialect == "megatron" else letter] = read_item(scan)


def _read_par_letter(scan: Scanner, letters: Letters) -> Node:
    node = letters.get(scan.peek().lower())
    if node is None:
        raise scan.error(f"unknown block {scan.found()}: {_known(letters)}")
    scan.at += 1
    return node


def _read_mad_term(scan: Scanner, letters: Letters) -> Repeat[Layer]:
    start = scan.at
    count, letter = _read_term(scan)
    return Repeat((_lookup(scan, letter, letters, start),), count, scan.where(start))


def _read_term(scan: Scanner) -> tuple[int, str]:
    """`4A` as (4, 'a'); the count is optional."""
    match = _TERM.match(scan.text, scan.at)
    if match is None:
        raise scan.error(f"expected a count and a letter such as 4A, found {scan.found()}")
    count = scan.checked(scan.at, lambda: parse_int(match.group(1) or "1"))
    if count < 1:
        raise scan.error("a block is repeated at least once")
    scan.at = match.end()
    return count, match.group(2).lower()


def _lookup(scan: Scanner, letter: str, letters: Letters, at: int) -> Node:
    if letter not in letters:
        raise scan.error(f"unknown block {quoted(letter)}: {_known(letters)}", at)
    return letters[letter]


def _known(letters: Letters) -> str:
    return f"the letters are {', '.join(sorted(letters))}; define others in place, as in [{min(letters)}=attn]"


def _read_placement_pattern(scan: Scanner, where: Where, defined: Letters) -> Node:
    start = scan.at
    name = scan.name(f"a placement pattern ({', '.join(PLACEMENT_PATTERNS)})")
    if name not in PLACEMENT_PATTERNS:
        raise scan.error(f"unknown placement pattern {quoted(name)}: there are {', '.join(PLACEMENT_PATTERNS)}", start)
    scan.expect("(", f"'{name}'")
    ratio, places = _read_ratio(scan) if name == "stripe" else ([], [])
    values = _read_arguments(scan, name, start)
    letters = _letters(_MAD_BLOCKS if name == "stripe" else _PAR_BLOCKS, where, defined)
    for (_, letter), at in zip(ratio, places, strict=True):
        _lookup(scan, letter, letters, at)
    blocks = scan.checked(start, lambda: _blocks(name, ratio, values))
    return Repeat(tuple(letters[letter] for letter in blocks), 1, where)


def _blocks(name: str, ratio: list[tuple[int, str]], values: Mapping[str, float]) -> str | list[str]:
    n = int(values["n"])
    if name == "par":
        return par_pattern(n, values.get("p", 5), values.get("within", TWO_THIRDS))
    if name == "sandwich":
        return sandwich_pattern(int(values["k"]), n)
    return stripe_blocks(ratio, n)


def _read_ratio(scan: Scanner) -> tuple[list[tuple[int, str]], list[int]]:
    """`1A:3H` at the start of a stripe's arguments, and the position of each term."""
    terms: list[tuple[int, str]] = []
    places: list[int] = []
    while True:
        scan.skip()
        if len(terms) >= MAX_LAYERS:
            raise scan.error(f"more than {MAX_LAYERS:,} terms")
        places.append(scan.at)
        terms.append(_read_term(scan))
        scan.skip()
        if scan.peek() == "=":
            raise scan.error("a stripe begins with its ratio, as in stripe(1A:3H,n=24)", places[-1])
        if not scan.take(":"):
            return terms, places


def _read_arguments(scan: Scanner, pattern: str, start: int) -> dict[str, float]:
    """`n=32, p=5)` with every key known and none missing."""
    required, optional = PLACEMENT_PATTERNS[pattern]
    values: dict[str, float] = {}
    while True:
        scan.skip(",")
        if scan.take(")"):
            break
        at = scan.at
        key = scan.name(f"an argument of {pattern} ({', '.join((*required, *optional))}) or ')'")
        if key not in (*required, *optional) or key in values:
            problem = "is given twice" if key in values else f"is not an argument of {pattern}"
            raise scan.error(f"{quoted(key)} {problem}: it takes {', '.join((*required, *optional))}", at)
        scan.skip()
        scan.expect("=", f"'{key}'")
        scan.skip()
        value = scan.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float if key in FRACTIONAL else int):
            raise scan.error(f"{key} takes a {'' if key in FRACTIONAL else 'whole '}number", at)
        values[key] = value
    missing = [key for key in required if key not in values]
    if missing:
        raise scan.error(f"placement pattern {pattern} needs {' and '.join(f'{key}=…' for key in missing)}", start)
    return values
