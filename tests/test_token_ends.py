"""Where in an answer's text each token ends: by bytes, in whole characters, up to a stop string, without EOS."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import micro
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from harness.engine.stop import StopCheck

TEXTS = ("plain", "ü", "a — b", "1 ≥ 0 ✓", "数え\n", "🙂🙂", "e\u0301", "", "no \N{REPLACEMENT CHARACTER} way")


@pytest.fixture(scope="module")
def by_bytes() -> StopCheck:
    """One token per byte."""
    tokenizer = micro.tokenizer()
    return StopCheck(tokenizer, [tokenizer.eos_token_id])


def checked(stop: StopCheck, tokens: list[int], strings: tuple[str, ...] = ()) -> tuple[str, list[int]]:
    """Text and ends, after what holds of all of them: never back, inside the text, and its end last."""
    text = stop.text(tokens, strings)
    ends = stop.ends(tokens, text)
    assert len(ends) == len(tokens)
    assert all(a <= b for a, b in pairwise([0, *ends, len(text)]))
    assert not tokens or ends[-1] == len(text)
    assert "".join(text[a:b] for a, b in pairwise([0, *ends])) == text
    return text, ends


def ids(stop: StopCheck, text: str) -> list[int]:
    return [int(i) for i in stop.tokenizer(text, add_special_tokens=False)["input_ids"]]


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_ends_with_its_last_byte(by_bytes: StopCheck, text: str) -> None:
    tokens, found = ids(by_bytes, text), text.encode()
    assert len(tokens) == len(found)
    got, ends = checked(by_bytes, tokens)
    assert got == text
    if "\N{REPLACEMENT CHARACTER}" not in text:  # told from half a character only by what follows
        assert ends == [len(found[: i + 1].decode(errors="ignore")) for i in range(len(found))]


def test_eos_adds_nothing(by_bytes: StopCheck) -> None:
    eos = by_bytes.tokenizer.eos_token_id
    assert checked(by_bytes, [*ids(by_bytes, "aü"), eos]) == ("aü", [1, 1, 2, 2])
    assert checked(by_bytes, [eos]) == ("", [0])
    assert checked(by_bytes, []) == ("", [])


def test_what_a_stop_string_cut_is_not_counted(by_bytes: StopCheck) -> None:
    assert checked(by_bytes, ids(by_bytes, "ab\n\nQ"), ("\n\nQ",)) == ("ab", [1, 2, 2, 2, 2])
    assert checked(by_bytes, ids(by_bytes, "Q: "), ("Q",)) == ("", [0, 0, 0])


def test_half_a_character_at_the_end_belongs_to_the_last_token(by_bytes: StopCheck) -> None:
    text, ends = checked(by_bytes, ids(by_bytes, "a🙂")[:-1])
    assert text.startswith("a\N{REPLACEMENT CHARACTER}")
    assert ends[:3] == [1, 1, 1]


def test_bytes_of_any_kind(by_bytes: StopCheck) -> None:
    """Random ones, most of them no text."""
    generator = random.Random(0)
    for _ in range(300):
        checked(by_bytes, [generator.randrange(micro.VOCABULARY) for _ in range(generator.randrange(12))])


def test_words_whose_space_is_dropped_at_the_start() -> None:
    """As sentencepiece decodes: a word alone is spelt without the space that it has in a text."""
    core = Tokenizer(models.WordLevel({"▁one": 0, "▁two": 1, "s": 2, "<end>": 3}, unk_token="s"))
    core.decoder = decoders.Metaspace()
    core.add_special_tokens(["<end>"])
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<end>", clean_up_tokenization_spaces=False
    )
    stop = StopCheck(tokenizer, [3])
    assert checked(stop, [0, 1, 2, 0, 3]) == ("one twos one", [3, 7, 8, 12, 12])
