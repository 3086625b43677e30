"""Heads and drafters on frozen weights, and further models: what they stand on is found, checked and identified."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import micro
import pytest
import torch
from safetensors.torch import save_file

from harness.decoding import decode
from harness.errors import UserError
from harness.models import checkpoints, load, registry
from harness.models.checkpoints import MissingCheckpoint, Resolved, fingerprint, identity, resolve, weights_identity
from harness.models.manifest import Manifest
from harness.training import recipe
from harness.training.compose import compose
from methods.ar_sft import ArSft
from methods.contract import OWN_WEIGHTS, Companion, Method, load_own_weights
from methods.medusa import Medusa
from methods.speculative import Speculative


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """No model kept from another test, no checkpoint of the repository."""
    load._kept.clear()
    monkeypatch.setattr(checkpoints, "REPOSITORY", tmp_path / "repository")
    monkeypatch.setenv("HARNESS_CHECKPOINTS", str(tmp_path / "checkpoints"))
    yield
    load._kept.clear()


class Heads(Method):
    name = "heads"
    checkpoint_kind = "heads"


@pytest.fixture
def spec(tmp_path: Path) -> registry.ModelSpec:
    """A user's own base with an AR SFT checkpoint, and heads trained on that."""
    base = micro.save(tmp_path / "base")
    spec = registry.ModelSpec("mine", "local", path=str(base), dtype="float32", small=True)
    micro.save(place(tmp_path, "ar_sft"), micro.model(seed=1), Manifest("ar_sft", "mine"))
    add_heads(tmp_path, fingerprint(spec, resolve(spec, kind="ar_sft")), "mine/ar_sft")
    return spec


def place(tmp_path: Path, name: str) -> Path:
    return tmp_path / "checkpoints" / "mine" / name


def add_heads(tmp_path: Path, base: str, origin: str | None, value: float = 1.0) -> Path:
    directory = place(tmp_path, "heads")
    directory.mkdir(parents=True, exist_ok=True)
    save_file({"weight": torch.full((2, 2), value)}, directory / OWN_WEIGHTS)
    Manifest("heads", "mine", adapter="own", init_from=origin, base=base, command="make heads").write(directory)
    return directory


def test_the_weights_underneath_are_loaded_and_the_own_ones_are_found(spec: registry.ModelSpec, tmp_path: Path) -> None:
    loaded = load.load(spec, method=Heads)
    assert loaded.checkpoint_dir == place(tmp_path, "heads")
    assert loaded.manifest is not None
    assert loaded.manifest.kind == "heads"
    expected = load.load(spec, method=ArSft).model.state_dict()
    for name, weight in loaded.model.state_dict().items():
        assert torch.equal(weight, expected[name]), "not the AR SFT weights"
    module = load_own_weights(torch.nn.Linear(2, 2, bias=False), loaded)
    assert torch.equal(module.weight, torch.ones(2, 2))
    with pytest.raises(UserError, match=r"own\.safetensors': does not fit: .*size mismatch"):
        load_own_weights(torch.nn.Linear(3, 2, bias=False), loaded)


def test_identity_holds_both(spec: registry.ModelSpec, tmp_path: Path) -> None:
    """Other heads are another cell, and so are other weights underneath."""
    before = identity(spec, resolve(spec, kind="heads"))
    assert load.load(spec, method=Heads).identity == before
    assert before["base"]["checkpoint"] == identity(spec, resolve(spec, kind="ar_sft"))["checkpoint"]
    print_ = fingerprint(spec, resolve(spec, kind="ar_sft"))
    add_heads(tmp_path, print_, "mine/ar_sft", value=2.0)
    assert identity(spec, resolve(spec, kind="heads")) != before
    micro.save(place(tmp_path, "ar_sft"), micro.model(seed=2))
    add_heads(tmp_path, fingerprint(spec, resolve(spec, kind="ar_sft")), "mine/ar_sft")
    assert identity(spec, resolve(spec, kind="heads")) != before


def test_heads_of_other_weights_are_passed_over_and_trained_anew(
    spec: registry.ModelSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    micro.save(place(tmp_path, "ar_sft"), micro.model(seed=2))
    checkpoints._warn.cache_clear()
    with caplog.at_level(logging.WARNING), pytest.raises(MissingCheckpoint, match="method=heads"):
        resolve(spec, kind="heads")
    assert "trained on other weights than mine/ar_sft has now" in caplog.text
    with pytest.raises(UserError, match=r"(?s)trained on other weights .*train it again: make heads"):
        resolve(spec, kind="heads", checkpoint=place(tmp_path, "heads"))


def test_heads_on_the_base_itself_and_on_an_explicit_checkpoint(spec: registry.ModelSpec, tmp_path: Path) -> None:
    add_heads(tmp_path, fingerprint(spec, Resolved()), None)
    assert resolve(spec, kind="heads").under == Resolved()
    other = micro.save(tmp_path / "other", micro.model(seed=3), Manifest("ar_sft", "mine"))
    add_heads(tmp_path, fingerprint(spec, Resolved(other)), str(other))
    under = resolve(spec, kind="heads").under
    assert under is not None
    assert under.directory == other


def test_retraining_replaces_what_is_passed_over(spec: registry.ModelSpec, tmp_path: Path) -> None:
    """The command that a message names must work: it has to overwrite the local heads of other weights."""
    local = tmp_path / "checkpoints" / "local" / "mine" / "heads"
    local.parent.mkdir(parents=True)
    place(tmp_path, "heads").rename(local)
    micro.save(place(tmp_path, "ar_sft"), micro.model(seed=2))
    with pytest.raises(MissingCheckpoint) as caught:
        resolve(spec, kind="heads", adds=True)
    assert caught.value.request.overrides[-1] == "overwrite=true"
    assert "there are" not in caught.value.allowed


def test_a_base_that_is_gone_is_passed_over(spec: registry.ModelSpec, tmp_path: Path) -> None:
    add_heads(tmp_path, "0" * 16, str(tmp_path / "gone"))
    with pytest.raises(MissingCheckpoint, match="method=heads"):
        resolve(spec, kind="heads")


def test_the_untuned_model_has_no_heads(spec: registry.ModelSpec) -> None:
    assert Medusa.adds_weights()
    assert not ArSft.adds_weights()
    with pytest.raises(UserError, match="variant='base': medusa adds trained weights"):
        load.load(spec, method=Medusa, variant="base")


def train(spec: registry.ModelSpec, tmp_path: Path, *overrides: str) -> Path:
    command = [
        "method=medusa", "model=local", f"model.path={spec.path}", "model.name=mine", "model.dtype=float32",
        "model.small=true", "data.limit=12", "data.held_out=0", "train.max_steps=2", "train.batch_size=2",
        f"checkpoints_dir={tmp_path / 'checkpoints'}", *overrides,
    ]  # fmt: skip
    return recipe.train_checkpoint(compose(command), command, progress=False)


def test_refusals_before_any_work_leave_nothing_behind(spec: registry.ModelSpec, tmp_path: Path) -> None:
    heads = place(tmp_path, "heads")
    with pytest.raises(UserError, match="adapter='lora': medusa trains weights of its own"):
        train(spec, tmp_path, "adapter=lora")
    with pytest.raises(UserError, match="holds what heads adds to some"):
        train(spec, tmp_path, f"init_from={heads}")
    assert not list(tmp_path.rglob(".*.training"))
    made = train(spec, tmp_path)
    assert Manifest.read(made).base == fingerprint(spec, resolve(spec, kind="ar_sft"))


def test_a_path_to_start_from_is_kept_absolute(
    spec: registry.ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place(tmp_path, "ar_sft").parent)
    made = train(spec, tmp_path, "init_from=ar_sft/../ar_sft", "variant=other")
    assert Manifest.read(made).init_from == str(place(tmp_path, "ar_sft"))
    monkeypatch.chdir("/")
    assert resolve(spec, kind="medusa", variant="other").under is not None


def test_a_training_is_not_resumed_on_other_weights(spec: registry.ModelSpec, tmp_path: Path) -> None:
    cfg = compose(["method=medusa", "model=tiny"])
    recipe.check_same_training(tmp_path / "work", cfg, {"start": "one"})
    recipe.check_same_training(tmp_path / "work", cfg, {"start": "one"})
    with pytest.raises(UserError, match="holds an interrupted training with other settings"):
        recipe.check_same_training(tmp_path / "work", cfg, {"start": "another"})


# Companions


def test_a_draft_model_comes_loaded_and_counts_in_the_identity(
    spec: registry.ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = registry.ModelSpec(
        "small", "local", path=str(micro.save(tmp_path / "small", micro.model(seed=5))), dtype="float32"
    )
    micro.save(tmp_path / "checkpoints" / "small" / "ar_sft", micro.model(seed=6), Manifest("ar_sft", "small"))
    real = registry.spec
    monkeypatch.setattr(checkpoints, "spec", lambda name: small if name == "small" else real(name))
    method = Speculative(draft_model="small")
    loaded = load.load(spec, method=method)
    draft = loaded.companions["draft"]
    assert torch.equal(draft.model.lm_head.weight, micro.model(seed=6).lm_head.weight)
    assert loaded.identity == weights_identity(spec, method, {"block_size": None})
    assert loaded.identity["companions"]["draft"]["model"] == "small"
    assert "companions" not in load.load(spec, method=ArSft()).identity
    by_entry = dataclasses.replace(spec, draft_model="small")
    assert load.load(by_entry, method=Speculative()).identity == loaded.identity


def test_without_a_draft_model_the_message_says_how_to_name_one(spec: registry.ModelSpec) -> None:
    with pytest.raises(UserError, match="method.draft_model=None: needed: no draft model is registered for mine"):
        load.load(spec, method=Speculative())


def test_a_draft_model_with_another_tokenizer_is_refused(
    spec: registry.ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CHECKPOINTS", str(REAL))
    with pytest.raises(UserError, match="method.draft_model='tiny-1m': a model with the tokenizer of mine"):
        load.load(spec, method=Speculative(draft_model="tiny-1m"), checkpoint=str(spec.path))


REAL = Path(__file__).parents[1] / "checkpoints"


def test_a_method_names_its_companions() -> None:
    [(name, companion)] = Speculative(
        draft="mars", draft_model="x", draft_checkpoint="y", draft_tau=0.5
    ).companions.items()
    assert (name, companion.model, companion.checkpoint) == ("draft", "x", "y")
    assert isinstance(companion, Companion)
    assert (companion.method.name, companion.method.tau) == ("mars", 0.5)  # type: ignore[attr-defined]


def test_a_model_loaded_without_its_draft_model_is_told(spec: registry.ModelSpec) -> None:
    with pytest.raises(UserError, match="loaded together with its draft model"):
        decode(load.load(spec, method=ArSft), "speculative", [[5, 6, 7]], max_new_tokens=4)


def test_an_unknown_draft_model_is_named_as_it_was_given(spec: registry.ModelSpec) -> None:
    with pytest.raises(UserError, match="method.draft_model='tiny-1': one of"):
        load.load(spec, method=Speculative(draft_model="tiny-1"))
