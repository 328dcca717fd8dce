from __future__ import annotations

from plait.data.tokenizers import END, UNKNOWN, Words, learn_words


def test_ids_follow_frequency_then_spelling() -> None:
    tokenizer = learn_words(["b b a a c <unk> <unk> <unk>\n", "a <eos> d"])
    assert [tokenizer.decode([number]) for number in range(2, tokenizer.vocab)] == ["a", "b", "c", "d"]
    assert (tokenizer.decode([0]), tokenizer.decode([1])) == ("\n", UNKNOWN)


def test_lines_end_in_eos_and_rare_words_are_unknown() -> None:
    tokenizer = learn_words(["a a a b b c\n"], min_count=2)
    assert tokenizer.vocab == 4
    assert tokenizer.encode(" a  c b \n\n <unk> b").tolist() == [2, 1, 3, 0, 0, 1, 3]
    assert tokenizer.end == 0
    assert learn_words(["a a a b b c\n"], size=3).encode("a b c").tolist() == [2, 1, 1]


def test_a_word_that_contains_eos_is_no_line_end() -> None:
    tokenizer = Words([f"x{END}", "y"])
    assert tokenizer.decode(tokenizer.encode(f"x{END} y\ny")) == f"x{END} y\ny"
