"""From a conversation to token ids, with every special token exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from harness.errors import UserError


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Ids of a chat up to where the assistant speaks; a last message of the assistant is left open, to be continued.

    The template writes the special tokens, BOS included, so the rendered text is encoded without adding them again.

    Args:
        messages: dicts with "role" and "content".

    Raises:
        UserError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise UserError(
            "chat", True, "this tokenizer has no chat template", "chat=false feeds the prompt as plain text"
        )
    continues = bool(messages) and messages[-1]["role"] == "assistant"
    rendered = tokenizer.apply_chat_template(
        [dict(m) for m in messages],
        tokenize=False,
        add_generation_prompt=not continues,
        continue_final_message=continues,
    )
    return encode_rendered(tokenizer, str(rendered))


def encode_rendered(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of a text that a chat template has already rendered."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def encode_plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of a text that no template has touched, with the special tokens that the tokenizer adds by itself."""
    return list(tokenizer(text)["input_ids"])
