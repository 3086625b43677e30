"""Training: data from every source, targets that equal the assistant's text, resuming, LoRA, manifests, refusals."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import micro
import pytest
import torch
from safetensors.torch import load_file

from harness import train as entry
from harness.errors import UserError
from harness.models.checkpoints import MissingCheckpoint, TrainingRequest
from harness.models.load import load
from harness.models.manifest import Manifest
from harness.training import data, loop, recipe, trainer
from harness.training.compose import compose
from harness.training.optimizer import MuonWithAdamW
from methods.contract import Example
from methods.mars import Mars

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One and one?"},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "And one?\n"},
    {"role": "assistant", "content": " Three"},
]


def targets(example: Example, tokenizer: Any) -> list[str]:
    """Text of each run of targets."""
    runs: list[list[int]] = []
    for i, (token, is_target) in enumerate(zip(example.ids, example.response, strict=True)):
        if is_target:
            if i == 0 or not example.response[i - 1]:
                runs.append([])
            runs[-1].append(token)
    return [tokenizer.decode(run) for run in runs]


# ---- data


def test_every_assistant_turn_is_a_target_with_its_end_of_turn() -> None:
    tokenizer = micro.tokenizer()
    example = data.encode(CHAT, tokenizer, 512)
    assert example is not None
    assert targets(example, tokenizer) == ["Two.<|im_end|>", " Three<|im_end|>"]
    whole = tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert tokenizer.decode(example.ids) == whole.rstrip("\n")
    assert example.ids.count(tokenizer.bos_token_id) == 1  # the template writes it, the tokenizer must not again


def test_tiny_template() -> None:
    from harness.models import tiny

    tokenizer = tiny.load_tokenizer()
    example = data.encode(CHAT, tokenizer, 512)
    assert example is not None
    assert targets(example, tokenizer) == ["Two.<|end|>", " Three<|end|>"]
    prompt = tokenizer.apply_chat_template(CHAT[:4], add_generation_prompt=True, return_dict=False)
    assert example.ids[: len(prompt)] == prompt  # what the model meets at inference


def test_truncation_keeps_the_front_and_drops_chats_without_targets() -> None:
    tokenizer = micro.tokenizer()
    example = data.encode(CHAT, tokenizer, 512)
    assert example is not None
    first = example.response.index(True)
    cut = data.encode(CHAT, tokenizer, first + 2)
    assert cut is not None
    assert (cut.ids, cut.response) == (example.ids[: first + 2], example.response[: first + 2])
    assert data.encode(CHAT, tokenizer, first) is None


def test_template_that_rewrites_earlier_turns_is_refused() -> None:
    tokenizer = micro.tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'user' or loop.last %}{{ m['content'] }}|{% endif %}{% endfor %}"
    )
    with pytest.raises(UserError, match="rewrites earlier turns"):
        data.encode(CHAT, tokenizer, 512)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"messages": [', "is not JSON"),
        ('{"chat": []}', "non-empty list"),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "no assistant message"),
        ('{"messages": [{"role": "robot", "content": "hi"}]}', "role 'robot'"),
        ('[{"role": "assistant", "content": "hi"}]', "starts with the assistant"),
        ("\udcff", "is not JSON in UTF-8"),
        ('[{"role": "assistant", "content": 3}]', "message 0 must be an object with a role and a text content"),
    ],
)
def test_malformed_jsonl_names_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": CHAT}) + "\n\n" + line + "\n", "utf-8", "surrogateescape")
    with pytest.raises(UserError, match=message) as caught:
        data.chats(data.DataConfig(source="jsonl", path=str(path), held_out=0))
    assert caught.value.value == f"{path}:3"


def test_jsonl_takes_bare_lists_and_holds_out_by_seed(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    lines = [data.pair(f"question {i}", f"answer {i}") for i in range(10)]
    path.write_text("\n".join(json.dumps(chat) for chat in lines), "utf-8")
    config = data.DataConfig(source="jsonl", path=str(path), held_out=3, seed=1)
    train, held_out = data.chats(config)
    assert (len(train), len(held_out)) == (7, 3)
    assert sorted(json.dumps(c) for c in train + held_out) == sorted(json.dumps(c) for c in lines)
    assert data.chats(config) == (train, held_out)
    config.held_out = 10
    with pytest.raises(UserError, match="none left to train on"):
        data.chats(config)


def test_gsm8k_drops_calculator_marks(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": "2*3=<<2*3=6>>6 pens\n#### 6"}) + "\n{}\n", "utf-8")
    config = data.DataConfig(source="gsm8k", path=str(path), held_out=0, limit=1)
    assert data.chats(config)[0] == [data.pair("q", "2*3=6 pens\n#### 6")]
    config.limit = None
    with pytest.raises(UserError, match="texts question and answer") as caught:
        data.chats(config)
    assert caught.value.value == f"{path}:2"


def test_hub_rows_are_read_through_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: dict[str, Any] = {}
    rows = [{"messages": CHAT}, {"messages": [{"role": "tool", "content": "no chat"}]}, {"messages": CHAT[1:3]}]

    def load_dataset(*args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        asked.update(kwargs, name=args[0])
        return rows

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    config = data.DataConfig(source="hub", dataset="owner/chats", revision="abc", held_out=0)
    assert sorted(map(len, data.chats(config)[0])) == [2, 5]
    assert asked == {"name": "owner/chats", "revision": "abc", "split": "train", "streaming": True}
    config.column = "talk"
    with pytest.raises(UserError, match="columns messages"):
        data.chats(config)


def test_unknown_source_and_missing_file() -> None:
    with pytest.raises(UserError, match="one of problems, gsm8k, jsonl, hub"):
        data.chats(data.DataConfig(source="gsm"))
    with pytest.raises(UserError, match="cannot be read: No such file"):
        data.chats(data.DataConfig(source="jsonl", path="nowhere.jsonl"))


def test_data_hash_sees_ids_and_targets() -> None:
    one, other = Example([1, 2, 3], [False, True, True]), Example([1, 2, 3], [False, False, True])
    assert data.data_hash([one]) == data.data_hash([Example([1, 2, 3], [False, True, True])])
    assert data.data_hash([one]) != data.data_hash([other])


# ---- loop


def test_batches_are_near_in_length_and_every_example_comes_once() -> None:
    lengths = [(7 * i) % 101 for i in range(203)]
    sampler = trainer.LengthGrouped(lengths, batch_size=8, seed=0)
    order = list(sampler)
    assert sorted(order) == list(range(203))
    assert list(sampler) == order
    batches = [order[i : i + 8] for i in range(0, 200, 8)]
    spread = [max(lengths[i] for i in b) - min(lengths[i] for i in b) for b in batches]
    assert max(spread) <= 12
    assert [lengths[b[0]] for b in batches] != sorted(lengths[b[0]] for b in batches)
    sampler.set_epoch(1)
    assert list(sampler) != order


def test_muon_moves_matrices_and_leaves_the_rest_to_adamw() -> None:
    model, twin = micro.model(), micro.model()
    muon = MuonWithAdamW(model, lr=1e-2, weight_decay=0.0, beta2=0.99)
    adam = torch.optim.AdamW(twin.parameters(), lr=1e-2, weight_decay=0.0, betas=(0.9, 0.99), fused=True)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for net, optimizer in ((model, muon), (twin, adam)):
        net(input_ids=torch.arange(12).view(1, -1), labels=torch.arange(12).view(1, -1)).loss.backward()
        optimizer.step()
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        is_matrix = one.ndim == 2 and "embed" not in name
        assert torch.equal(one, other) != is_matrix, name
        if is_matrix:  # an update of AdamW's size, root mean square 0.2 of the learning rate; less at low rank
            size = (one - before[name]).square().mean().sqrt().item()
            assert 0.3 < size / (0.2 * 1e-2) < 1.4, name


def test_a_schedule_reaches_both_optimizers_also_after_loading() -> None:
    muon = MuonWithAdamW(micro.model(), lr=1e-2, weight_decay=0.0, beta2=0.99)
    schedule = torch.optim.lr_scheduler.LambdaLR(muon, lambda step: 0.5**step)
    muon.load_state_dict(copy.deepcopy(muon.state_dict()))
    muon.step()
    schedule.step()
    assert [part.param_groups[0]["lr"] for part in muon.parts] == [5e-3, 5e-3]


@pytest.fixture
def chats_file(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    lines = [data.pair(f"{'x' * (i % 7)} {i}?", f"It is {i}{'!' * (i % 5)}") for i in range(70)]
    path.write_text("\n".join(json.dumps(chat) for chat in lines), "utf-8")
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return micro.save(tmp_path / "micro")


def overrides(base: Path, chats_file: Path, root: Path, *more: str) -> list[str]:
    """A training of a few steps of the micro model."""
    return [
        "model=local", f"model.path={base}", "data=jsonl", f"data.path={chats_file}", "data.held_out=6",
        "train.batch_size=8", "train.max_steps=6", "train.learning_rate=3e-3", "train.log_every=2",
        "train.save_every=2", "train.eval_every=4", "train.bf16=false", "train.save_dtype=float32",
        "init_from=base", "device=cpu", f"checkpoints_dir={root}", *more,
    ]  # fmt: skip


def make(args: Sequence[str]) -> Path:
    return recipe.train_checkpoint(compose(args), args, progress=False)


class Killed(Exception):
    """Stands for a power cut."""


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resumed_training_equals_an_uninterrupted_one(
    optimizer: str, base: Path, chats_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("method=mars", "block_size=3", "train.accumulation=2", f"train.optimizer={optimizer}")
    whole = make(overrides(base, chats_file, tmp_path / "whole", *more))

    original = trainer.Watch.on_step_end

    def cut(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        original(self, args, state, control, **kwargs)
        if state.global_step == 5:
            raise Killed  # after the state of step 4

    args = overrides(base, chats_file, tmp_path / "cut", *more)
    monkeypatch.setattr(trainer.Watch, "on_step_end", cut)
    with pytest.raises(Killed):
        make(args)
    assert not (tmp_path / "cut/local/micro/mars-b3").exists()
    monkeypatch.setattr(trainer.Watch, "on_step_end", original)
    with pytest.raises(UserError, match="interrupted training with other settings.*\n.*resume=false"):
        make([*args, "ar_weight=0.5"])
    resumed = make(args)

    one, other = (load_file(d / "model.safetensors") for d in (whole, resumed))
    assert one.keys() == other.keys()
    start = load_file(base / "model.safetensors")
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=0)
        assert not torch.equal(tensor[: len(start[name])], start[name]), f"{name} was not trained"
    logs = [[json.loads(line) for line in (d / loop.LOG_NAME).read_text().splitlines()] for d in (whole, resumed)]
    told, told_again = ([(e["step"], e.get("loss")) for e in log] for log in logs)
    assert told == told_again
    a, b = Manifest.read(whole), Manifest.read(resumed)
    assert (a.steps, a.tokens, a.losses, a.data) == (b.steps, b.tokens, b.losses, b.data)
    assert a.steps == 6
    assert not list(resumed.parent.glob(".*.training")), "states of a finished training are removed"


def test_manifest_and_log_tell_how_the_checkpoint_was_made(base: Path, chats_file: Path, tmp_path: Path) -> None:
    args = overrides(base, chats_file, tmp_path, "method=mars", "block_size=2", "alignment=released", "ar_weight=0.5")
    directory = make(args)
    assert directory == tmp_path / "local/micro/mars-b2-released"
    manifest = Manifest.read(directory)
    assert (manifest.kind, manifest.model, manifest.block_size) == ("mars", "micro", 2)
    assert (manifest.alignment, manifest.variant, manifest.adapter) == ("released", "released", "full")
    assert manifest.objective["ar_weight"] == 0.5
    assert manifest.data["examples"] == 64
    assert manifest.command == "python -m harness.train " + shlex.join(args)
    assert manifest.losses.keys() == {"loss", "masked", "clean", "held_out"}
    assert manifest.tokens > 6 * 8 * 10
    entries = [json.loads(line) for line in (directory / loop.LOG_NAME).read_text().splitlines()]
    logged = [e for e in entries if "loss" in e]
    assert [e["step"] for e in logged] == [2, 4, 6]
    assert [e["tokens"] for e in logged] == sorted(e["tokens"] for e in logged)
    for e in logged:
        assert e["loss"] == pytest.approx(e["loss_masked"] + 0.5 * e["loss_clean"], rel=1e-4)
    loaded = load(
        {"name": "micro", "source": "local", "path": str(base)},
        method=Mars, block_size=2, checkpoint=directory, dtype="float32", device="cpu",
    )  # fmt: skip
    assert loaded.mask_token_id == manifest.mask_token_id
    with pytest.raises(UserError, match="is there already"):
        make(args)


def test_lora_trains_the_mask_embedding_and_saves_little(base: Path, chats_file: Path, tmp_path: Path) -> None:
    args = overrides(
        base, chats_file, tmp_path, "method=mars", "block_size=2", "adapter=lora", "lora.rank=2", "train.max_steps=3",
        "model.mask_token='<unused>'",
    )  # fmt: skip
    directory = make(args)
    manifest = Manifest.read(directory)
    mask = manifest.mask_token_id
    assert mask == micro.tokenizer().convert_tokens_to_ids("<unused>")
    assert manifest.adapter == "lora"
    saved = load_file(directory / "adapter_model.safetensors")
    trained = sum(t.numel() for t in saved.values())
    assert all(t.abs().max() > 0 for name, t in saved.items() if "lora_B" in name)
    assert trained < 0.25 * micro.model().num_parameters()
    assert not (directory / "model.safetensors").exists()
    loaded = load(
        {"name": "micro", "source": "local", "path": str(base), "mask_token": "<unused>"},
        method=Mars, block_size=2, checkpoint=directory, dtype="float32", device="cpu",
    )  # fmt: skip
    before = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    after = loaded.model.get_input_embeddings().weight
    moved = (after - before).abs().amax(1) > 0
    assert moved.nonzero().flatten().tolist() == [mask]


def test_lora_on_a_checkpoint_is_saved_with_it(base: Path, chats_file: Path, tmp_path: Path) -> None:
    """An adapter alone would later be loaded onto the untuned base: other weights than those it was trained on."""
    common = ("train.max_steps=3", "model.mask_token='<unused>'")
    start = make(overrides(base, chats_file, tmp_path, "method=ar_sft", "train.learning_rate=0.1", *common))
    args = ("method=mars", "block_size=2", "adapter=lora", f"init_from={start}", "train.learning_rate=0")
    directory = make(overrides(base, chats_file, tmp_path, *args, "train.save_dtype=float32", *common))
    assert Manifest.read(directory).adapter == "lora"
    loaded = load(
        {"name": "micro", "source": "local", "path": str(base), "mask_token": "<unused>"},
        method=Mars, block_size=2, checkpoint=directory, dtype="float32", device="cpu",
    )  # fmt: skip
    trained_on = load_file(start / "model.safetensors")["model.layers.0.mlp.up_proj.weight"].float()
    assert torch.allclose(loaded.model.get_decoder().layers[0].mlp.up_proj.weight, trained_on, atol=1e-3)
    untuned = load_file(base / "model.safetensors")["model.layers.0.mlp.up_proj.weight"].float()
    assert not torch.allclose(untuned, trained_on, atol=1e-2)


def test_two_trainings_of_one_checkpoint_wait_for_each_other(base: Path, chats_file: Path, tmp_path: Path) -> None:
    """The second finds the first one's checkpoint instead of writing into its states."""
    args = overrides(base, chats_file, tmp_path, "method=ar_sft", "train.max_steps=3")
    with ThreadPoolExecutor(2) as pool:
        outcomes = [pool.submit(make, args) for _ in range(2)]
    failures = [str(o.exception()) for o in outcomes if o.exception() is not None]
    assert len(failures) == 1
    assert "is there already" in failures[0]


def test_ar_sft_on_micro_learns(base: Path, chats_file: Path, tmp_path: Path) -> None:
    directory = make(overrides(base, chats_file, tmp_path, "method=ar_sft", "train.max_steps=12"))
    losses = [json.loads(line).get("loss") for line in (directory / loop.LOG_NAME).read_text().splitlines()]
    found = [loss for loss in losses if loss is not None]
    assert found[-1] < 0.8 * found[0]
    manifest = Manifest.read(directory)
    assert (manifest.mask_token_id, manifest.block_size, manifest.objective) == (None, None, {})


def test_stable_decay_reaches_zero_and_its_front_does_not_depend_on_the_end() -> None:
    config = loop.LoopConfig(schedule="stable_decay", warmup=2, decay=3, max_steps=10)
    assert loop.decay_arguments(config, loop.total_steps(config, 1000))["num_decay_steps"] == 3
    config.decay, config.max_steps, config.epochs, config.batch_size = 0.25, 0, 2.0, 8
    assert loop.total_steps(config, 100) == 26
    assert loop.decay_arguments(config, 26)["num_decay_steps"] == 7


# ---- recipe and command line


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lerning_rate=1", "no such key\n.*train.learning_rate=1"),
        ("train.learning_rate=fast", "a number"),
        ("method=mers", "method=mars"),
        ("train=papr", "train=paper"),
        ("train.batch_size=0", "a number from 1"),
        ("train.schedule=step", "one of cosine, linear, constant, stable_decay"),
        ("block_size=0", "at least 1"),
        ("alignment=papers", "one of paper, released"),
        ("ar_weight=-1", "a number from 0"),
        ("loss_weight=max", "one of mean, inverse_t"),
        ("adapter=dora", "one of full, lora"),
        ("objective.gamma=2", "mars has the options block_size"),
        ("data.limit=0", "a number from 1"),
        ("init_from=nowhere", "has no manifest.json"),
    ],
)
def test_bad_settings_are_refused_before_any_work(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        make(["method=mars", "model=tiny-1m", f"checkpoints_dir={tmp_path}", override])
    assert not list(tmp_path.rglob("*.json*"))


def test_command_line_prints_one_message_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "method=mars", "block_sise=4", f"checkpoints_dir={tmp_path}"])
    assert entry.main() == 2
    assert capsys.readouterr().err == "error: block_sise='4': no such key\n  fix: did you mean block_size=4?\n"


def test_models_that_are_not_small_are_refused_with_the_command_that_makes_the_start(
    base: Path, chats_file: Path, tmp_path: Path
) -> None:
    args = [*overrides(base, chats_file, tmp_path / "out"), "method=mars", "init_from=ar_sft"]
    with pytest.raises(UserError, match=r"method=ar_sft model=local model.path=.*or init_from=base") as caught:
        make(args)
    assert caught.value.key == "init_from"


def test_missing_start_of_a_small_model_is_trained_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []

    def on_demand(overrides: Sequence[str], checkpoints_dir: str | None, **_: Any) -> None:
        asked.append(overrides)
        raise Killed

    def missing(spec: Any, **_: Any) -> None:
        request = TrainingRequest(spec.name, "ar_sft", None, None, None, ("method=ar_sft", f"model={spec.name}"))
        raise MissingCheckpoint("checkpoint", "ar_sft", "none", request.command, request)

    monkeypatch.setattr(recipe, "train_on_demand", on_demand)
    monkeypatch.setattr(recipe, "resolve", missing)
    with pytest.raises(Killed):
        make(["method=mars", "model=tiny-1m", f"checkpoints_dir={tmp_path}"])
    assert asked == [("method=ar_sft", "model=tiny-1m")]


def test_recipe_of_a_model_yields_to_the_command_line_alone() -> None:
    cfg = compose(["method=mars", "model=smollm2-135m"])
    assert (cfg.adapter, cfg.init_from, cfg.data.limit) == ("lora", "base", 240)
    cfg = compose(["method=mars", "model=smollm2-135m", "init_from=ar_sft", "data.limit=7"])
    assert (cfg.adapter, cfg.init_from, cfg.data.limit) == ("lora", "ar_sft", 7)
    assert compose(["method=mars", "model=smollm2-135m", "train=paper"]).adapter == "full"


def test_paper_settings_are_table_7() -> None:
    cfg = compose(["method=mars", "model=qwen2.5-0.5b", "train=paper"])
    assert (cfg.train.learning_rate, cfg.train.schedule) == (5e-6, "cosine")
    assert (cfg.train.warmup, cfg.train.epochs) == (0.03, 5)
    assert cfg.train.batch_size * cfg.train.accumulation * 8 == 384
    assert (cfg.train.max_sequence_length, cfg.train.bf16) == (512, True)
    assert cfg.data.dataset == "allenai/Dolci-Instruct-SFT"
