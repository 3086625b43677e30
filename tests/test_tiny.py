"""The packaged tokenizer and the two small architectures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness import problems
from harness.errors import UserError
from harness.models import tiny
from harness.models.checkpoints import checkpoint_name
from harness.models.manifest import Manifest
from harness.training import data, loop
from harness.training.compose import compose

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"


@pytest.fixture(scope="module")
def tokenizer() -> tiny.PreTrainedTokenizerBase:
    return tiny.load_tokenizer()


def test_rebuilding_gives_the_committed_files(tmp_path: Path) -> None:
    tiny.build_tokenizer().save_pretrained(tmp_path)
    committed = {path.name: path.read_bytes() for path in tiny.TOKENIZER_DIR.iterdir()}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == committed


@pytest.mark.parametrize(
    "text", ["Mia has 12 * 345 = 4140 pencils.\n#### 4140", "naïve 漢字 🙂\t\r\n  two  spaces ", "<<a>>"]
)
def test_round_trip(tokenizer: tiny.PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_stand_alone(tokenizer: tiny.PreTrainedTokenizerBase) -> None:
    digits = [t for t in tokenizer.tokenize("a 2024 cards, 7*88=616") if any(c.isdigit() for c in t)]
    assert digits == list("2024788616")
    assert not [t for t in tokenizer.get_vocab() if len(t) > 1 and any(c.isdigit() for c in t)]


def test_special_tokens_are_single_and_distinct(tokenizer: tiny.PreTrainedTokenizerBase) -> None:
    ids = [tokenizer(token)["input_ids"] for token in tiny.SPECIAL_TOKENS]
    assert ids == [[i] for i in range(len(tiny.SPECIAL_TOKENS))]
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id}) == 3
    assert tokenizer.bos_token_id is None
    assert len(tokenizer) == tiny.VOCABULARY_SIZE


def test_prompt_is_a_prefix_of_the_conversation(tokenizer: tiny.PreTrainedTokenizerBase) -> None:
    chat = [{"role": "user", "content": "How many? "}, {"role": "assistant", "content": " 42"}]
    prompt = tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True, return_dict=False)
    whole = tokenizer.apply_chat_template(chat, return_dict=False)
    assert whole[: len(prompt)] == prompt
    assert whole[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(whole) == "<|user|>How many? <|end|><|assistant|> 42<|end|>"


def test_problems_are_short_and_need_no_byte_fallback(tokenizer: tiny.PreTrainedTokenizerBase) -> None:
    found = problems.generate("train", 300, seed=9)
    lengths = [len(tokenizer(p.question + p.answer)["input_ids"]) for p in found]
    assert max(lengths) < 200
    assert sum(lengths) / len(lengths) < 130


@pytest.mark.parametrize(("name", "low", "high"), [("tiny", 3.5e6, 4.5e6), ("tiny-1m", 0.8e6, 1.2e6)])
def test_size_and_seeded_weights(name: str, low: float, high: float) -> None:
    before = torch.random.get_rng_state()
    model, again, other = tiny.untrained(name), tiny.untrained(name), tiny.untrained(name, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert low < model.num_parameters() < high
    assert model.config.vocab_size == tiny.VOCABULARY_SIZE
    assert model.config.model_type == "qwen2"
    weight, same, differs = (m.model.layers[0].mlp.up_proj.weight for m in (model, again, other))
    assert torch.equal(weight, same)
    assert not torch.equal(weight, differs)


def test_unknown_name() -> None:
    with pytest.raises(UserError, match="model='tiny-2m'.*tiny, tiny-1m"):
        tiny.config("tiny-2m")


# ---- the committed checkpoints

SHIPPED = ("tiny/ar_sft", "tiny/mars-b4", "tiny-1m/ar_sft", "tiny-1m/mars-b4")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_checkpoint_is_what_its_recipe_makes(name: str) -> None:
    manifest = Manifest.read(CHECKPOINTS / name)
    overrides = manifest.command.removeprefix("python -m harness.train ").split()
    cfg = compose(overrides)
    assert name == f"{cfg.model.name}/{checkpoint_name(cfg.method.name, manifest.block_size)}"
    assert manifest.steps == loop.total_steps(loop.LoopConfig(**cfg.train), cfg.data.limit)
    assert manifest.data["examples"] == cfg.data.limit
    assert manifest.init_from == (f"{cfg.model.name}/ar_sft" if manifest.kind == "mars" else None)
    assert all(cfg[key] == value for key, value in manifest.objective.items())
    for file in ("tokenizer.json", "chat_template.jinja"):
        assert (CHECKPOINTS / name / file).read_bytes() == (tiny.TOKENIZER_DIR / file).read_bytes()


def test_shipped_checkpoints_are_small_and_quick_to_train() -> None:
    sizes = [path.stat().st_size for name in SHIPPED for path in (CHECKPOINTS / name).iterdir()]
    assert sum(sizes) < 40e6
    for model in ("tiny", "tiny-1m"):
        seconds = [Manifest.read(CHECKPOINTS / name).seconds for name in SHIPPED if name.startswith(f"{model}/")]
        assert sum(seconds) < 3600


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_checkpoint_was_trained_on_the_data_of_today(name: str) -> None:
    manifest = Manifest.read(CHECKPOINTS / name)
    cfg = compose(manifest.command.removeprefix("python -m harness.train ").split())
    config = data.DataConfig(**cfg.data)
    config.held_out = 1
    prepared = data.prepare(config, tiny.load_tokenizer(), cfg.train.max_sequence_length)
    assert prepared.record == manifest.data
