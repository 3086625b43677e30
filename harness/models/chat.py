"""From a conversation to token ids, with every special token exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from harness.errors import UserError


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Ids of a chat up to where the assistant speaks; a last message of the assistant is left open, to be continued.

    The template writes the special tokens, BOS included, so the rendered text is encoded without adding them again.

    Args:
        messages: dicts with "role" and "content".

    Raises:
        UserError: the tokenizer has no chat template, a message lacks its role or text, or the template refuses it.
    """
    for i, message in enumerate(messages):
        if not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise UserError("prompt", message, f"message {i} must have a role and a content, both text")
    if not tokenizer.chat_template:
        raise UserError(
            "chat", True, "this tokenizer has no chat template", "chat=false feeds the prompt as plain text"
        )
    continues = bool(messages) and messages[-1]["role"] == "assistant"
    try:
        rendered = tokenizer.apply_chat_template(
            [dict(m) for m in messages],
            tokenize=False,
            add_generation_prompt=not continues,
            continue_final_message=continues,
        )
    except TemplateError as error:
        roles = ", ".join(str(m["role"]) for m in messages)
        raise UserError("prompt", roles, f"the model's chat template refuses these turns: {error}") from error
    return encode_rendered(tokenizer, str(rendered))


def encode_rendered(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of a text that a chat template has already rendered."""
    return list(tokenizer(_text(text), add_special_tokens=False, verbose=False)["input_ids"])


def encode_plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of a text that no template has touched, with the special tokens that the tokenizer adds by itself."""
    return list(tokenizer(_text(text), verbose=False)["input_ids"])


def _text(text: str) -> str:
    """Raises UserError where a text holds halves of surrogate pairs (bytes that were no UTF-8): no ids for it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError("prompt", text[:40], f"text; character {error.start} is no valid Unicode") from None
    return text
