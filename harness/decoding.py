"""The Python API: ``from harness import decode``; a model, a method and prompts in, texts with statistics out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from harness.config import CONF, suggest
from harness.engine.loop import Engine
from harness.engine.rows import Completion, Request
from harness.errors import UserError
from harness.grid import make_method
from harness.models.chat import encode_chat, encode_plain
from harness.models.load import LoadedModel, load
from methods.contract import Method

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


def decode(
    model: str | Mapping[str, Any] | LoadedModel,
    method: str | Method,
    prompts: Prompt | Sequence[Prompt],
    *,
    max_new_tokens: int = 256,
    stop: Sequence[str] = (),
    chat: bool = True,
    seed: int = 0,
    batch_size: int = 8,
    cache: str = "cursor",
    cache_block: int = 16,
    accept_limit: str = "block_size",
    variant: str | None = None,
    alignment: str | None = None,
    checkpoint: str | Path | None = None,
    checkpoints_dir: str | Path | None = None,
    dtype: str | None = None,
    device: str = "auto",
    **options: Any,
) -> list[Completion]:
    """Continue prompts with a decoding method, greedily unless it is given a ``temperature``.

    Args:
        model: registry name ("tiny", "smollm2-135m", …), a ``model`` config, or a model that ``load`` returned, which
            settles variant, alignment, checkpoint, dtype and device.
        method: its name, with its options as further keywords (``tau=0.95, block_size=4``), or an instance.
        prompts: one prompt or several; each a user's message, a whole conversation (dicts with role and content), or
            token ids that are fed as they are.
        stop: strings that end a text; they are cut off.
        chat: apply the model's chat template to strings; False feeds them as plain text.
        batch_size: prompts decoded together.
        cache, cache_block, accept_limit: see ``harness.engine.loop.Engine``.

    Returns:
        One completion per prompt, in their order: ``text``, ``token_ids``, ``stats`` (with ``tokens_per_forward``) and
        the ``trace`` of tokens committed together.

    Raises:
        UserError: whatever of the above does not exist or fit.

    Example:
        >>> from harness import decode
        >>> [answer] = decode("tiny", "mars", "Tom has 3 bags of 12 apples. How many apples?", tau=0.9)
        >>> answer.text, answer.stats.tokens_per_forward
    """
    chosen = pick_method(method, options)
    if isinstance(model, LoadedModel):
        given = {"variant": variant, "alignment": alignment, "checkpoint": checkpoint, "dtype": dtype}
        for key, value in given.items():
            if value is not None:
                raise UserError(key, value, "settled already: the model is loaded", f"pass {key} to load()")
        loaded = model
    else:
        loaded = load(
            model,
            method=chosen,
            block_size=chosen.trained_as.trained_block_size,
            variant=variant,
            alignment=alignment,
            checkpoint=checkpoint,
            checkpoints_dir=checkpoints_dir,
            dtype=dtype,
            device=device,
        )
    requests = [
        Request(encode_prompt(loaded, prompt, chat), max_new_tokens, tuple(stop), key=i, seed=seed + i)
        for i, prompt in enumerate(_each(prompts))
    ]
    engine = Engine(
        loaded, chosen, batch_size=batch_size, cache=cache, cache_block=cache_block, accept_limit=accept_limit
    )
    return sorted(engine.run(requests), key=lambda completion: completion.key)  # type: ignore[arg-type,return-value]


def pick_method(method: str | Method, options: Mapping[str, Any]) -> Method:
    """A method by name with its options, or the instance itself.

    Raises:
        UserError: no such method or option, or a value out of range.
    """
    if isinstance(method, Method):
        if options:
            key, value = next(iter(options.items()))
            raise UserError(key, value, "options go with a method's name, and an instance was given")
        return method
    names = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
    if method not in names:
        raise UserError("method", method, f"one of {', '.join(names)}", suggest("method", method, names))
    node = OmegaConf.load(CONF / "method" / f"{method}.yaml")
    assert isinstance(node, DictConfig)
    return make_method(node, {}, options)


def encode_prompt(loaded: LoadedModel, prompt: Prompt, chat: bool = True) -> list[int]:
    """Token ids of one prompt: ids as they are, a conversation or a user's message through the chat template."""
    if isinstance(prompt, str):
        messages = [{"role": "user", "content": prompt}]
        return encode_chat(loaded.tokenizer, messages) if chat else encode_plain(loaded.tokenizer, prompt)
    if isinstance(prompt, list | tuple):
        if prompt and all(isinstance(message, Mapping) for message in prompt):
            return encode_chat(loaded.tokenizer, prompt)
        if all(isinstance(i, Integral) for i in prompt):
            return [int(i) for i in prompt]
    fix = 'call .tolist() on an array or tensor; of a tokenizer\'s output take ["input_ids"]'
    raise UserError("prompts", prompt, "each a text, a list of messages (dicts), or a list of token ids", fix)


def _each(prompts: Any) -> Sequence[Prompt]:
    """One prompt as a list of one; a list of ids or of messages is one prompt."""
    if not isinstance(prompts, list | tuple) or (prompts and isinstance(prompts[0], Integral | Mapping)):
        return [prompts]
    return prompts
