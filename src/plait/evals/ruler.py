"""The questions of RULER that need no download: needles, variable tracking, common and frequent words.

After Hsieh et al. 2024, arXiv:2404.06654, and the settings of the authors' public code: four keys, values or queries, a
chain of four hops, ten common words thirty times against three, words by Zipf's law with α = 2. The wording is plait's
own and there are no worked examples, so scores are comparable with each other and not with published ones. Two further
differences: filler is plait's own noise or the corpus instead of essays, and word lists shrink (ten times against once)
if a text is too short for thirty and three.

The question repeats the words of the needle, so copying is enough for one value of one key. The evaluation
generates answers at multiples of the trained length.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.errors import UserError
from plait.core.registry import names, require_known
from plait.core.units import listed
from plait.evals.evaluation import Subject
from plait.evals.long_context import LongContextEvaluation
from plait.evals.questions import Asks, Question, Script, TooShort, written

NOISE = (
    "The river runs to the sea. A cart stands by the barn. The morning is cold and clear. Smoke rises over the roofs. "
    "Here the road turns back. The dog sleeps in the shade. Nobody has come yet. The gate stays open. "
)
_WORDS = """
amber anchor apple arrow autumn badge baker barrel basket beacon bishop blanket bottle bramble branch breeze bridge
bronze bucket butter button cabin cactus camel candle canyon carpet castle cellar cherry chimney cinder circle clover
cobble comet copper coral cotton cradle crayon cricket crystal curtain cushion dagger daisy dancer desert diamond
dolphin donkey dragon drawer drummer eagle elbow ember emerald engine fabric falcon farmer feather fiddle finger
flannel flower forest fossil fountain garden garlic giant ginger glacier goblet granite gravel hammer harbor harvest
hazel helmet hermit hollow honey hunter insect island ivory jacket jasmine jewel jungle kettle kitten ladder lantern
lemon leopard lizard locket lumber magnet mantle maple marble meadow melon mirror monkey mortar muffin needle nickel
nutmeg oboe olive onion opal orbit orchard otter oyster paddle palace panther parrot pebble pepper pigeon pillow
pirate planet pocket pony poplar potato powder prairie prism pumpkin puzzle quartz quiver rabbit radish raven ribbon
rocket saddle salmon sandal satin scarlet shadow silver sparrow spider spinach squirrel stable staple summit sunset
swallow tablet tailor tangle temple thistle thunder ticket timber tomato trumpet tulip tunnel turtle umbrella valley
velvet violin walnut weaver whistle willow window winter wizard
"""
WORDS = tuple(_WORDS.split())
KEYS = VALUES = QUERIES = 4
HOPS = 4
COMMON, OFTEN, SELDOM = 10, (30, 10), (3, 1)  # words, and how often they and the others occur; second: in short texts
ALPHA, ZETA, TOP = 2.0, np.pi**2 / 6, 3


def word_key(stream: np.random.Generator) -> str:
    first, second = stream.choice(len(WORDS), 2, replace=False)
    return f"{WORDS[first]}-{WORDS[second]}"


def number(stream: np.random.Generator, digits: int = 7) -> str:
    return str(stream.integers(10 ** (digits - 1), 10**digits))


def uuid(stream: np.random.Generator) -> str:
    """A random UUID of version 4."""
    digits = "".join(f"{byte:02x}" for byte in stream.bytes(16))
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


A_NUMBER, A_UUID = "7183465", "6e1c8f02-93ab-4d7e-a05b-c2f4871d9e36"  # to measure the room for an answer
#: The number of different ones.
NUMBERS, UUIDS = 9 * 10**6, 2**120
Draws = Callable[[np.random.Generator], str]


def distinct(stream: np.random.Generator, count: int, draw: Draws) -> list[str]:
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn[draw(stream)] = None
    return list(drawn)


def hidden(key: str, value: str) -> str:
    return f" The secret of {key} is {value}."


def asked(keys: Sequence[str], values: int) -> str:
    if values == 1:
        return f"\nWhat is the secret of {keys[0]}? The secret of {keys[0]} is"
    if len(keys) == 1:
        return f"\nWhat are all the secrets of {keys[0]}? The {values} secrets of {keys[0]} are"
    return f"\nWhat are the secrets of {listed(keys)}? The secrets of {listed(keys)} are, in this order,"


def scattered(script: Script, stream: np.random.Generator, facts: Sequence[str], end: str, room: int, what: str,
              length: int) -> np.ndarray:  # fmt: skip
    """The facts, in order, at random positions of the filler (after full stops, if it has any), followed by `end`."""
    pieces, last = [script.encode(fact) for fact in facts], script.encode(end)
    used = sum(map(len, pieces)) + len(last) + room
    if used > length:
        raise TooShort(what, length, used)
    hay, places = script.hay(length - used)
    chosen = np.sort(stream.choice(places, len(pieces)))
    parts, before = [], 0
    for at, piece in zip(chosen, pieces, strict=True):
        parts += [hay[before:at], piece]
        before = at
    return np.concatenate([*parts, hay[before:], last])


def needles(what: str, *, keys: int = 1, values: int = 1, queries: int = 1, ids: bool = False) -> Asks:
    """`keys` things with `values` secrets each; the secrets of `queries` of them are asked for."""

    def asks(script: Script, stream: np.random.Generator, length: int) -> Question:
        things = distinct(stream, keys, word_key)
        secrets = distinct(stream, keys * values, uuid if ids else number)
        facts = [hidden(things[i // values], secret) for i, secret in enumerate(secrets)]
        chosen = things[:queries]
        answers = tuple(secrets[: queries * values])
        room = script.room(A_UUID if ids else A_NUMBER, len(answers))
        order = stream.permutation(len(facts))
        prompt = scattered(
            script, stream, [facts[i] for i in order], asked(chosen, queries * values), room, what, length
        )
        more = keys * values > len(answers)
        return Question(prompt, answers, len(answers) / (keys * values) if more else 1 / (UUIDS if ids else NUMBERS))

    return asks


def among_needles(what: str, *, ids: bool = False) -> Asks:
    """The whole text consists of needles, and one of them is asked for."""

    def asks(script: Script, stream: np.random.Generator, length: int) -> Question:
        draw_key, draw_value = (uuid, uuid) if ids else (word_key, number)
        key, value = draw_key(stream), draw_value(stream)
        end, room = script.encode(asked([key], 1)), script.room(A_UUID if ids else A_NUMBER)
        pieces, used = [script.encode(hidden(key, value))], 0
        used = len(pieces[0]) + len(end) + room
        while True:
            other = draw_key(stream)
            piece = script.encode(hidden(other, draw_value(stream)))
            if used + len(piece) > length:
                break
            if other != key:
                pieces.append(piece)
                used += len(piece)
        if len(pieces) < 2:
            raise TooShort(what, length, used + len(piece))
        order = stream.permutation(len(pieces))
        body = np.concatenate([*(pieces[i] for i in order), end])
        return Question(script.filled(body, room, what, length), (value,), 1 / len(pieces))

    return asks


def variable_tracking(script: Script, stream: np.random.Generator, length: int) -> Question:
    """A chain of assignments; which variables have the value at its start?"""
    letters = list(string.ascii_uppercase)
    names = distinct(stream, HOPS + 1, lambda s: "".join(s.choice(letters, 5)))
    value = number(stream, 5)
    facts = [f" VAR {names[0]} = {value}."]
    facts += [f" VAR {new} = VAR {old}." for old, new in itertools.pairwise(names)]
    end = f"\nWhich variables have the value {value}? The {len(names)} variables with the value {value} are"
    room = script.room("QXJZV", len(names))
    prompt = scattered(script, stream, facts, end, room, "vt", length)
    return Question(prompt, tuple(names), 26.0**-5)


def common_words(script: Script, stream: np.random.Generator, length: int) -> Question:
    """A list in which ten words occur ten times as often as any other; which are they?"""
    end = f"\nWhich {COMMON} words occur most often in the list above? They are"
    room, least = script.room(max(WORDS, key=len), COMMON), 0
    for often, seldom in zip(OFTEN, SELDOM, strict=True):
        drawn = distinct(stream, COMMON, lambda s: WORDS[s.integers(len(WORDS))])

        def text(others: int, drawn: list[str] = drawn, often: int = often, seldom: int = seldom) -> str:
            rest = _other_words(stream, drawn, others)
            words = [*drawn * often, *rest * seldom]
            order = stream.permutation(len(words))
            return " ".join(f"{i + 1}. {words[at]}" for i, at in enumerate(order)) + end

        body, others, least = _largest(script, text, length - room, least=COMMON)
        if body is not None:
            return Question(script.filled(body, room, "cwe", length), tuple(drawn), COMMON / (COMMON + others))
    raise TooShort("cwe", length, least + room)


def _other_words(stream: np.random.Generator, taken: Sequence[str], count: int) -> list[str]:
    """Words that are not taken yet: single ones, then pairs if there are not enough."""
    single = [WORDS[i] for i in stream.permutation(len(WORDS)) if WORDS[i] not in taken]
    if count <= len(single):
        return single[:count]
    pairs = [f"{a}-{b}" for a in single for b in single if a != b]
    return [*single, *(pairs[i] for i in stream.choice(len(pairs), count - len(single), replace=False))]


def frequent_words(script: Script, stream: np.random.Generator, length: int) -> Question:
    """Made-up words with frequencies by Zipf's law; the most frequent is shown as dots. Which three come next?"""
    letters = list(string.ascii_lowercase)
    end = f"\nDots mean nothing. Which {TOP} words occur most often in the text above? They are"
    coded = distinct(stream, 2000, lambda s: "".join(s.choice(letters, 6)))
    room = script.room("qxjzvk", TOP)

    def counts(words: int) -> list[int]:
        every = np.floor(words * np.arange(1, len(coded) + 2) ** -ALPHA / ZETA).astype(int)
        return [int(count) for count in every if count]

    def text(words: int) -> str:
        drawn = [word for word, count in zip(["...", *coded], counts(words), strict=False) for _ in range(count)]
        return " ".join(drawn[i] for i in stream.permutation(len(drawn))) + end

    body, words, least = _largest(script, text, length - room, least=66)  # smallest size with four different counts
    if body is None:
        raise TooShort("fwe", length, least + room)
    chance = TOP / (len(counts(words)) - 1)
    return Question(script.filled(body, room, "fwe", length), tuple(coded[:TOP]), chance)


def _largest(
    script: Script, text: Callable[[int], str], most: int, *, least: int
) -> tuple[np.ndarray | None, int, int]:
    """The text of the largest size that has at most so many tokens, that size, and the tokens of the smallest size.
    Sizes are tried by doubling, then proportionally from the largest that fitted; the last draw is used."""
    body, size = script.encode(text(least)), least
    needed = len(body)
    if needed > most:
        return None, least, needed
    for _ in range(4):
        guess = int(size * most / max(len(body), 1))
        if guess <= size:
            break
        tried = script.encode(text(guess))
        while len(tried) > most and guess > size + 1:
            guess = max(size, int(guess * most / len(tried)) - 1)
            tried = script.encode(text(guess))
        if len(tried) > most:
            break
        body, size = tried, guess
    return body, size, needed


QUESTIONS: dict[str, Asks] = {
    "niah_single": needles("niah_single"),
    "niah_single_uuid": needles("niah_single_uuid", ids=True),
    "niah_multikey": needles("niah_multikey", keys=KEYS),
    "niah_multikey_needles": among_needles("niah_multikey_needles"),
    "niah_multikey_uuid": among_needles("niah_multikey_uuid", ids=True),
    "niah_multivalue": needles("niah_multivalue", values=VALUES),
    "niah_multiquery": needles("niah_multiquery", keys=QUERIES, queries=QUERIES),
    "vt": variable_tracking,
    "cwe": common_words,
    "fwe": frequent_words,
}


HAYSTACKS = ("noise", "text")


@dataclass(frozen=True)
class RulerEvaluation(LongContextEvaluation):
    name = "ruler"
    what = "needles, variable tracking and word counts in long texts, by generation"

    tasks: str = "all"  # or some of them, separated by commas
    haystack: str = "noise"  # the filler: plait's own noise, or text (the corpus)

    @property
    def needs_text(self) -> bool:
        return self.haystack == "text"

    def asked(self) -> dict[str, Asks]:
        chosen = list(QUESTIONS) if self.tasks == "all" else names(self.tasks)
        for name in chosen:
            require_known(name, QUESTIONS, "ruler has no task")
        return {name: QUESTIONS[name] for name in chosen}

    def filler(self, subject: Subject) -> np.ndarray:
        self.require(self.haystack in HAYSTACKS, "haystack", "noise or text")
        if self.haystack == "text":
            if not len(subject.tokens):
                raise UserError("ruler: haystack=text hides needles in a corpus: give one by --data.")
            return subject.tokens[: 2**20]
        assert subject.tokenizer is not None
        return written(subject.tokenizer, NOISE)
