"""Slow solvers, written from the paper's text and not from the code: each reads one input, left to right, with the ids
of App. B.1's alphabets, and says what must be asked and answered. They know nothing of how sequences are drawn."""

from __future__ import annotations

NOTHING = -100


def recall(inputs, *, keys, values):
    """The token after a key that occurred before is that key's value. Anything that is no pair is passed over."""
    answers, seen = [], {}
    for at, token in enumerate(inputs):
        answers.append(seen.get(token, NOTHING))
        before = inputs[at - 1] if at else None
        if token in values and before in keys:
            assert seen.setdefault(before, token) == token, "two values for one key"
    return answers


def fuzzy(inputs, *, keys, values, full):
    """After `full` key tokens in a row the value follows, token by token, if this key occurred before."""
    answers, seen, key, value, recalled = [], {}, (), (), None
    for token in inputs:
        if token in keys:
            if value or not key:  # a value (or the padding) ended: a new key begins
                if value:
                    assert seen.setdefault(key, value) == value, "two values for one key"
                key, value, recalled = (), (), None
            key += (token,)
            recalled = seen.get(key) if len(key) == full else None
            answers.append(recalled[0] if recalled else NOTHING)
        elif token in values:
            value += (token,)
            more = recalled is not None and len(value) < len(recalled)
            answers.append(recalled[len(value)] if more else NOTHING)
        else:
            assert not key, "padding inside"
            answers.append(NOTHING)
    return answers


def copying(inputs, *, tokens, insert):
    """The n-th insert is asked for the n-th token."""
    content = [token for token in inputs if token in tokens]
    return [content.pop(0) if token == insert else NOTHING for token in inputs]


def copying_after(inputs, *, tokens, copy):
    """Every position after the copy token is asked for the next token."""
    content, at = [token for token in inputs if token in tokens], inputs.index(copy)
    return [NOTHING] * (at + 1) + content


def compression(inputs, *, asks_last):
    return [*inputs[:-1], inputs[-1] if asks_last else NOTHING]


def memorization(inputs, *, facts, insert):
    """The insert after a key is asked for its fact."""
    return [facts[inputs[at - 1]] if token == insert else NOTHING for at, token in enumerate(inputs)]
