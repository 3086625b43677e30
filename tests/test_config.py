"""Mistakes on the command line: one message that names key, value, what is allowed, and the nearest right thing."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_fakes import settings, write_checkpoint, write_checkpoints

from harness import compose, config
from harness.errors import UserError
from harness.grid import make_plan


@pytest.fixture
def base(tmp_path: Path) -> list[str]:
    write_checkpoints(tmp_path / "checkpoints")
    return settings(tmp_path)


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("method=marz", "method", "method=mars"),
        ("model=tinny", "model", "model=tiny"),
        ("suite=gsm8", "suite", "suite=gsm8k"),
        ("tracking=wandbb", "tracking", "tracking=wandb"),
        ("taau=0.7", "taau", "did you mean tau=0.7?"),
        ("block-size=4", "block-size", "did you mean block_size=4?"),
        ("suite.limt=3", "suite.limt", "did you mean suite.limit=3?"),
        ("model.dtyp=float64", "model.dtyp", "did you mean model.dtype=float64?"),
        ("method.window=3", "method.window", "no such key"),
        ("+method.window=3", "method.window", "mars has the options tau, block_size, confidence"),
        ("zzz=3", "zzz", "--cfg job shows every key"),
        ("+zzz=3", "zzz", "--cfg job shows every key"),
        ("+suite.zzz=3", "suite.zzz", "--cfg job shows every key"),
        ("tau=abc", "tau", "a number"),
        ("tau=", "tau", "a number"),
        ("tau=1.5", "tau", "from 0 to 1"),
        ("tau=-0.1", "tau", "from 0 to 1"),
        ("tau=nan", "tau", "from 0 to 1"),
        ("block_size=0", "block_size", "at least 1"),
        ("block_size=-4", "block_size", "at least 1"),
        ("block_size=2.5", "block_size", "a whole number"),
        ("batch_size=0", "batch_size", "at least 1"),
        ("cache_block=0", "cache_block", "at least 1"),
        ("threads=0", "threads", "at least 1"),
        ("seed=-1", "seed", "from 0"),
        ("cache=blok", "cache", "cache=block"),
        ("accept_limit=block", "accept_limit", "accept_limit=block_size"),
        ("confidence=margins", "confidence", "confidence=margin"),
        ("dtype=fp32", "dtype", "dtype=float32"),
        ("alignment=papers", "alignment", "alignment=paper"),
        ("train_on_demand=maybe", "train_on_demand", "bool"),
        ("suite.limit=0", "suite.limit", "at least 1"),
        ("suite.limit=many", "suite.limit", "a whole number"),
        ("suite.max_gen_toks=0", "suite.max_gen_toks", "at least 1"),
        ("checkpoint=/nowhere", "checkpoint", "a directory"),
        ("variant=base", "variant", "no untuned weights"),
        ("tau=0.1,0.2", "tau", "-m"),
        ("nonsense", "command line", "missing EQUAL"),
    ],
)
def test_mistake(base: list[str], override: str, key: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        make_plan([*base, override], multirun=False)
    assert caught.value.key == key
    assert words in str(caught.value)
    assert str(caught.value.value) in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["method=jacobi", "method.target=8"], "no option target\n  fix: jacobi has window_length, initial"),
        (["method=jacobi", "method.windowlength=8"], "did you mean method.window_length=8?"),
        (["method=mars", "method.window=3"], "no option window\n  fix: mars has no options of its own"),
        (["method=mars", "method.tau=0.5"], "did you mean tau=0.5?"),
        (["method=jacobi", "window_length=8"], "did you mean method.window_length=8?"),
        (["method=jacobi,ar_sft", "window_length=8"], "method.window_length=8? Of these methods jacobi has it."),
        (["method=ar_sft,block_diffusion", "method.store=fused"], "ar_sft has no option store (block_diffusion has)"),
        (
            ["method=medusa,eagle,ar_sft", "method.num_nodes=8"],
            "no option num_nodes (medusa and eagle have)",
        ),
        (["method=medusa,eagle", "method.num_node=8"], "medusa and eagle have no option num_node\n  fix: did you mean"),
    ],
)
def test_options_of_methods(base: list[str], overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        make_plan([*base, *overrides], multirun="," in overrides[0])
    assert words in str(caught.value)
    assert "_target_" not in str(caught.value)


def test_options_of_a_method_of_ones_own_are_known(base: list[str], tmp_path: Path) -> None:
    group = tmp_path / "own" / "method"
    group.mkdir(parents=True)
    (group / "ahead.yaml").write_text("_target_: methods.jacobi.Jacobi\nname: ahead\nwindow_length: 8\n")
    with pytest.raises(UserError, match=r"mars has no option window_length \(ahead has\)"):
        make_plan(
            [*base, "method=ahead,mars", "method.window_length=4"], multirun=True, config_dir=str(tmp_path / "own")
        )


def test_tau_is_checked_against_its_confidence(base: list[str]) -> None:
    assert make_plan([*base, "tau=2.5", "confidence=entropy"], multirun=False)
    with pytest.raises(UserError, match="nats"):
        make_plan([*base, "tau=-1", "confidence=entropy"], multirun=False)


def test_block_size_without_checkpoint_is_refused_with_the_command(base: list[str]) -> None:
    with pytest.raises(UserError, match="python -m harness.train method=mars model=tiny-1m block_size=8"):
        make_plan([*base, "block_size=8", "train_on_demand=false"], multirun=False)


def test_explicit_checkpoint_without_manifest_is_still_checked(base: list[str], tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "mars-b4", block_size=4)
    (tmp_path / "tiny-1m" / "mars-b4" / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        make_plan([*base, f"checkpoint={tmp_path / 'tiny-1m' / 'mars-b4'}"], multirun=False)


def test_missing_data_file_is_found_before_any_work(base: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"test\.jsonl"):
        make_plan([*base, "suite=gsm8k", f"suite.data_dir={tmp_path}"], multirun=False)


def test_malformed_data_names_file_and_line(base: list[str], tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"question": "q", "answer": "a"}\n{"question": \n')
    with pytest.raises(UserError, match=r"test\.jsonl, line 2"):
        make_plan([*base, "suite=gsm8k", f"suite.data_dir={tmp_path}"], multirun=False)


def test_keys_of_a_chosen_group_are_its_own(base: list[str]) -> None:
    """The default's keys say nothing about another choice's."""
    plan = make_plan([*base, "tracking=wandb", "tracking.project=mine"], multirun=False)
    assert plan.cells[0].cfg.tracking.project == "mine"
    with pytest.raises(UserError, match=r"tracking\.project"):
        make_plan([*base, "tracking=none", "tracking.project=mine"], multirun=False)


def test_every_shared_key_is_in_the_yaml() -> None:
    """A field without a value in conf/config.yaml would be missing at run time."""
    [(cfg, _)], _ = compose.expand([], multirun=False)
    config.validate(cfg)
    assert set(cfg) == set(config.RunConfig.__dataclass_fields__)


def test_results_and_checkpoints_follow_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    [(cfg, _)], _ = compose.expand([], multirun=False)
    assert cfg.results_dir == str(config.ROOT / "results")
    monkeypatch.setenv("HARNESS_RESULTS", str(tmp_path))
    [(cfg, _)], _ = compose.expand([], multirun=False)
    assert cfg.results_dir == str(tmp_path)
