"""Slow, plain readings of what the engine must do: no cache, no batch, no windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

VOCAB, MASK, EOS = 64, 63, 62


def micro_model(kind: str = "qwen2", seed: int = 0, sharpen: float = 1.0, vocab: int = VOCAB) -> Any:
    """A random two-layer fp64 model; ``sharpen`` scales its logits so that confidences spread."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
    }
    model = Qwen2ForCausalLM(Qwen2Config(**shape)) if kind == "qwen2" else LlamaForCausalLM(LlamaConfig(**shape))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.normal_(0, 0.3)
            elif "bias" in name:
                p.normal_(0, 0.3)  # Qwen2's attention biases start at zero, which would hide a bug
        model.lm_head.weight.mul_(sharpen)
    return model.double().eval()


@dataclass
class LetterTokenizer:
    """Every token is a letter and a digit; decoding is concatenation."""

    special: tuple[int, ...] = (MASK, EOS)

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        skipped = self.special if skip_special_tokens else ()
        return "".join(f"{chr(65 + t // 8)}{t % 8}" for t in tokens if t not in skipped)


@dataclass
class Target:
    """The least that the engine needs of a loaded model."""

    model: Any
    tokenizer: Any = field(default_factory=LetterTokenizer)
    mask_token_id: int | None = MASK
    eos_token_ids: tuple[int, ...] = (EOS,)
    context_length: int = 256
    checkpoint_dir: Path | None = None
    manifest: Any = None
    companions: dict[str, Any] = field(default_factory=dict)


def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    """[length, vocab] of a plain causal forward."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def greedy(model: Any, prompt: list[int], num_tokens: int, eos: tuple[int, ...] = (EOS,)) -> list[int]:
    """Greedy AR by full recomputation."""
    tokens: list[int] = []
    while len(tokens) < num_tokens and not (tokens and tokens[-1] in eos):
        tokens.append(int(logits_of(model, prompt + tokens)[-1].argmax()))
    return tokens


def mars(
    model: Any, prompt: list[int], num_tokens: int, block_size: int, tau: float, eos: tuple[int, ...] = (EOS,)
) -> list[list[int]]:
    """MARS §3.4 read literally: append B−1 masks, accept left to right while the top probability reaches tau.

    Returns:
        Tokens committed by each forward, cut at EOS and at ``num_tokens``.
    """
    steps: list[list[int]] = []
    tokens: list[int] = []
    while len(tokens) < num_tokens and not (tokens and tokens[-1] in eos):
        at = len(prompt) + len(tokens)
        logits = logits_of(model, prompt + tokens + [MASK] * (block_size - 1))
        step: list[int] = []
        for i in range(block_size):
            probability = torch.softmax(logits[at - 1 + i].float(), -1)
            if i > 0 and not (float(probability.max()) >= tau and tau < 1):
                break
            step.append(int(logits[at - 1 + i].argmax()))
            if step[-1] in eos or len(tokens) + len(step) == num_tokens:
                break
        steps.append(step)
        tokens += step
    return steps
