"""The packaged models: two small Qwen2 shapes and a tokenizer of their own, so that everything runs on two CPU cores.

``python -m harness.models.tiny`` rebuilds the tokenizer from generated text, byte for byte as it is committed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from harness import problems
from harness.errors import UserError

TOKENIZER_DIR = Path(__file__).parent / "assets" / "tiny_tokenizer"

PAD, SYSTEM, USER, ASSISTANT, END, MASK = "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|mask|>"
SPECIAL_TOKENS = (PAD, SYSTEM, USER, ASSISTANT, END, MASK)
VOCABULARY_SIZE = 512  # 6 special tokens, 256 bytes, 250 merges
CONTEXT_LENGTH = 1024

# The end-of-turn token is the EOS token. The whole template is special tokens and verbatim text, so that a prompt
# tokenized alone is always a prefix of the conversation tokenized whole.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

SHAPES = {
    # name: (hidden, layers, query heads, key/value heads, feed-forward)
    "tiny": (256, 4, 4, 2, 1024),
    "tiny-1m": (128, 4, 4, 2, 512),
}


def tokenizer_text() -> Iterator[str]:
    """Text that the tokenizer is built from: questions and answers of the training split."""
    for problem in problems.generate("train", 5000, seed=0):
        yield problem.question
        yield problem.answer


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of ``VOCABULARY_SIZE`` tokens in which every digit stands alone; the same on every machine."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(tokenizer_text(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        mask_token=MASK,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer() -> PreTrainedTokenizerBase:
    """The committed tokenizer, shared by all packaged models."""
    return PreTrainedTokenizerFast.from_pretrained(TOKENIZER_DIR)


def config(name: str) -> Qwen2Config:
    """Architecture of a packaged model.

    Raises:
        UserError: no packaged model has this name.
    """
    if name not in SHAPES:
        raise UserError("model", name, f"packaged models are {', '.join(SHAPES)}")
    hidden, layers, heads, kv_heads, feed_forward = SHAPES[name]
    tokenizer = load_tokenizer()
    return Qwen2Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=feed_forward,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.02,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def untrained(name: str, seed: int = 0) -> Qwen2ForCausalLM:
    """A packaged model with seeded random weights in float32: where AR SFT from scratch begins."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM._from_config(config(name), attn_implementation="sdpa", dtype=torch.float32)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TOKENIZER_DIR
    build_tokenizer().save_pretrained(target)
    print(f"tokenizer of {VOCABULARY_SIZE} tokens written to {target}")
