from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import UserError
from plait.data.tokenizers import UNKNOWN_CHARACTER, Characters, learn_characters


@given(known=st.text(), text=st.text())
def test_what_is_not_in_the_alphabet_is_unknown(known: str, text: str) -> None:
    tokenizer = learn_characters([known])
    assert tokenizer.vocab == len(set(known)) + 1
    expected = "".join(character if character in known else UNKNOWN_CHARACTER for character in text)
    assert tokenizer.decode(tokenizer.encode(text)) == expected


def test_a_closed_alphabet_refuses_other_characters() -> None:
    tokenizer = Characters("ACGT", unknown=False)
    assert tokenizer.vocab == 4
    assert tokenizer.encode("TAG").tolist() == [3, 0, 2]
    for wrong in ("B", "☃", "@"):
        with pytest.raises(UserError, match=f"the character '{wrong}' is not in the alphabet 'ACGT'"):
            tokenizer.encode(f"TA{wrong}G")
