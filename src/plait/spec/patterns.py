"""Placement patterns: a few numbers in, a pattern of blocks out.

PAR (Mandava et al. 2020, arXiv:2009.04534, section 2.3) for n blocks and the coefficient p:
  1. attention is needed only among the first 2n/3 blocks, 2. one attention block for p blocks suffices, and these are
  placed uniformly.
Read as: a = n/p attention blocks, rounded (a half goes down, since few is the point), the first at block 1, the others
at the widest even spacing that keeps all of them within the first ⌊2n/3⌋. With p = 5 this gives the published
patterns of 32 blocks, (sfff)x6 (f)x8, and of 24, (sff)x5 (f)x9. For 36 it gives (sff)x7 (f)x15, whereas the paper
trained (sfff)x7 (f)x8: there the seventh attention is block 25, outside the first 24, so the paper breaks its own
first rule. To have that model, write `par:(sfff)x7 (f)x8`.
Other searches find other shares than the first two thirds: `within` says which (`plait.analysis.placement` fits it).

Sandwich (Press et al. 2020, arXiv:1911.03864) with n pairs and the coefficient k: k attention blocks, n - k pairs of
attention and feed-forward, k feed-forward blocks.

Stripe: a ratio such as 1A:3H repeated until there are n blocks, cut off there.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from plait.core.errors import UserError
from plait.spec.limits import MAX_LAYERS

# name -> (arguments that must be given, arguments that may be)
PLACEMENT_PATTERNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "par": (("n",), ("p", "within")),
    "sandwich": (("k", "n"), ()),
    "stripe": (("n",), ()),
}
FRACTIONAL = ("p", "within")  # the arguments that need not be whole numbers
TWO_THIRDS = 2 / 3


def par_pattern(n: int, p: float = 5, within: float = TWO_THIRDS) -> str:
    """n letters s (attention) and f (feed-forward) by the two PAR rules, the first with this share of the blocks."""
    _check_blocks(n)
    if p <= 0:
        raise UserError(f"p={p:g}: must be greater than 0")
    if not 0 < within <= 1:
        raise UserError(f"within={within:g}: must be above 0, at most 1")
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
    """How many of the first blocks may hold attention."""
    # The fraction that was meant: 0.7 and 2/3 are, as floats, a little less.
    share = Fraction(within).limit_denominator(MAX_LAYERS)
    return max(1, int(n * share))


def sandwich_pattern(k: int, n: int) -> str:
    """2n letters: k times s, n - k times sf, k times f."""
    _check_blocks(2 * n)
    if not 0 <= k <= n:
        raise UserError(f"k={k}: must lie between 0 and n={n}")
    return "s" * k + "sf" * (n - k) + "f" * k


def stripe_blocks(ratio: list[tuple[int, str]], n: int) -> list[str]:
    """n letters: the (count, letter) pairs of the ratio over and over, cut off after n."""
    _check_blocks(n)
    once: list[str] = []
    for count, letter in ratio:
        once += [letter] * min(count, n - len(once))
    return (once * (n // len(once) + 1))[:n]


def _check_blocks(n: int) -> None:
    if not 1 <= n <= MAX_LAYERS:
        raise UserError(f"{n:,} blocks: a placement pattern takes 1 to {MAX_LAYERS:,}")
