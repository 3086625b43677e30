"""Run keys: what changes them, what does not; cells that are the same are one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from run_fakes import settings, write_checkpoint, write_checkpoints

from harness import listing
from harness.errors import UserError
from harness.grid import make_plan
from harness.results.keys import run_key


@pytest.fixture
def base(tmp_path: Path) -> list[str]:
    write_checkpoints(tmp_path / "checkpoints")
    return settings(tmp_path)


def key(*overrides: str) -> str:
    [cell] = make_plan(overrides, multirun=False).cells
    return cell.key


@pytest.mark.parametrize(
    "override",
    [
        "tau=0.9", "confidence=margin", "method=ar_sft", "suite.limit=7", "suite.max_gen_toks=100", "seed=1",
        "dtype=bfloat16", "cache=none", "cache=block", "accept_limit=cache_block",
        "suite.protocol.word_problems.options.seed=1", "suite.protocol.word_problems.filter=flexible-extract",
    ],
)  # fmt: skip
def test_what_changes_the_output_changes_the_key(base: list[str], override: str) -> None:
    assert key(*base) != key(*base, override)


@pytest.mark.parametrize(
    "override",
    [
        "batch_size=8", "threads=1", "device=cpu", "train_on_demand=false", "cache_block=8", "tracking=wandb",
        "tau=0.950", "alignment=paper", "dtype=float32", "results_dir=/tmp/elsewhere",
    ],
)  # fmt: skip
def test_what_does_not_change_the_output_does_not_change_the_key(base: list[str], override: str) -> None:
    """dtype=float32 is what the model has anyway; the alignment is the checkpoint's own."""
    assert key(*base) == key(*base, override)


def test_cache_block_counts_under_the_block_cache_only(base: list[str]) -> None:
    assert key(*base, "cache=block") != key(*base, "cache=block", "cache_block=8")


def test_weights_are_part_of_the_key_and_the_manifest_is_not(base: list[str], tmp_path: Path) -> None:
    before = key(*base)
    directory = tmp_path / "checkpoints" / "tiny-1m" / "mars-b4"
    manifest = directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"steps": 0', '"steps": 9'))
    assert key(*base) == before
    (directory / "model.safetensors").write_bytes(b"other weights")
    assert key(*base) != before


def test_key_is_canonical_and_stable() -> None:
    assert run_key({"a": 1, "b": [0.5, None]}) == run_key({"b": (0.5, None), "a": 1.0})
    assert run_key({"a": 0.7}) == "8792433a75e72c19", "keys on disk must survive refactoring"
    with pytest.raises(ValueError, match="JSON"):
        run_key({"a": float("nan")})


def test_version_of_a_method_is_part_of_the_key(base: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from methods.mars import Mars

    before = key(*base)
    monkeypatch.setattr(Mars, "version", Mars.version + 1)
    assert key(*base) != before


def test_sweep_in_order_with_repeats_merged_and_named(base: list[str]) -> None:
    plan = make_plan([*base, "method=ar_sft,mars", "tau=0.7,0.95", "seed=0,1"], multirun=True)
    assert [cell.overrides for cell in plan.cells] == [
        ("method=ar_sft", "tau=0.7", "seed=0"),
        ("method=ar_sft", "tau=0.7", "seed=1"),
        ("method=mars", "tau=0.7", "seed=0"),
        ("method=mars", "tau=0.7", "seed=1"),
        ("method=mars", "tau=0.95", "seed=0"),
        ("method=mars", "tau=0.95", "seed=1"),
    ]
    assert plan.notices() == [
        "ar_sft: 2 settings (tau=0.7; tau=0.95) are one cell, because tau does not change its output"
    ]


def test_methods_to_which_the_same_does_not_matter_share_a_notice(base: list[str]) -> None:
    """MARS at verify=true has no tau, which is so of that setting only and stands alone."""
    plan = make_plan([*base, "method=ar_sft,mars,jacobi", "verify=true,false"], multirun=True)
    assert plan.notices() == ["ar_sft, jacobi: verify does not change their output, so each runs once"]
    plan = make_plan(
        [*base, "method=ar_sft,mars,jacobi", "tau=0.7,0.9", "verify=true,false", "seed=0,1"], multirun=True
    )
    assert plan.notices() == [
        "ar_sft, jacobi: tau and verify do not change their output, so each runs once for each of the other settings",
        "mars: 2 settings (tau=0.7; tau=0.9) are one cell, because tau does not change its output",
    ]
    plan = make_plan([*base, "method=ar_sft,jacobi", "seed=0,0"], multirun=True)
    assert plan.notices() == ["ar_sft, jacobi: asked for more than once, each runs once"]


def test_a_setting_that_matters_elsewhere_in_the_sweep_is_no_common_reason(base: list[str]) -> None:
    """With verify=true tau is of no account to MARS; with verify=false it is."""
    plan = make_plan([*base, "method=mars,ar_sft", "tau=0.7,0.9", "verify=true"], multirun=True)
    assert plan.notices() == ["mars, ar_sft: tau does not change their output, so each runs once"]
    sweep = ["method=mars,ar_sft", "tau=0.7,0.9", "verify=true,false"]
    assert [notice.split(":")[0] for notice in make_plan([*base, *sweep], multirun=True).notices()] == [
        "mars",
        "ar_sft",
    ]


def test_truth_values_are_spelled_as_on_the_command_line(base: list[str]) -> None:
    [notice] = make_plan([*base, "method=ar_sft", "verify=false,true"], multirun=True).notices()
    assert notice.startswith("ar_sft: 2 settings (verify=false; verify=true) are one cell")


def test_two_keys_that_do_not_matter_are_both_named(base: list[str]) -> None:
    plan = make_plan([*base, "method=ar_sft", "tau=0.7,0.95", "block_size=4,8"], multirun=True)
    [notice] = plan.notices()
    assert "4 settings" in notice
    assert notice.endswith("because tau and block_size do not change its output")


def test_ranges_of_hydra_are_expanded(base: list[str]) -> None:
    plan = make_plan([*base, "tau=choice(0.5,1.0)", "seed=range(3)"], multirun=True)
    assert len(plan.cells) == 6


def test_variants_of_mars_say_nothing_to_ar_sft(base: list[str], tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path / "checkpoints", "mars-b4-released_no_sft_loss", b"other", block_size=4, alignment="released",
        variant="released_no_sft_loss", mask_token_id=3,
    )  # fmt: skip
    variants = "variant=null,released_no_sft_loss"
    plan = make_plan([*base, "method=mars,ar_sft", variants], multirun=True)
    assert [cell.method.name for cell in plan.cells] == ["mars", "mars", "ar_sft"]
    assert "variant does not change its output" in plan.notices()[0]
    assert not any(cell.missing for cell in plan.cells)


def test_checkpoint_to_be_trained_is_missing_with_its_command(base: list[str], tmp_path: Path) -> None:
    plan = make_plan([*base, "block_size=4,8"], multirun=True)
    assert plan.cells[0].missing is None
    assert plan.cells[1].missing is not None
    assert plan.cells[1].missing.request.command == (
        f"python -m harness.train method=mars model=tiny-1m block_size=8 checkpoints_dir={tmp_path / 'checkpoints'}"
    )
    provisional = plan.cells[1].key
    write_checkpoint(tmp_path / "checkpoints", "mars-b8", block_size=8, alignment="paper", mask_token_id=3)
    assert make_plan([*base, "block_size=8"], multirun=False).cells[0].key != provisional


def test_config_dir_brings_methods_of_ones_own(base: list[str], tmp_path: Path) -> None:
    group = tmp_path / "own" / "method"
    group.mkdir(parents=True)
    (group / "careful.yaml").write_text("_target_: methods.mars.Mars\nname: careful\ntau: 1.0\n")
    [cell] = make_plan([*base, "method=careful"], multirun=False, config_dir=str(tmp_path / "own")).cells
    assert cell.key == key(*base, "tau=1.0")
    with pytest.raises(UserError, match="config-dir"):
        make_plan(base, multirun=False, config_dir=str(tmp_path / "absent"))


def test_sweep_written_in_a_config_is_expanded(base: list[str], tmp_path: Path) -> None:
    group = tmp_path / "own" / "experiment"
    group.mkdir(parents=True)
    (group / "taus.yaml").write_text(
        "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      tau: 0.5,0.6,0.7\n"
    )
    plan = make_plan([*base, "+experiment=taus"], multirun=False, config_dir=str(tmp_path / "own"))
    assert [cell.method.tau for cell in plan.cells] == [0.5, 0.6, 0.7]  # type: ignore[attr-defined]


def test_estimate_without_any_record_is_rough_and_says_so(base: list[str]) -> None:
    [cell] = make_plan([*base, "suite.limit=5"], multirun=False).cells
    estimate = listing.estimate_cell(cell, [])
    assert estimate.documents == 5
    assert estimate.seconds is not None
    assert 0.1 < estimate.seconds < 60
    assert estimate.basis.startswith("rough")


def test_documents_are_counted_within_the_limit(base: list[str], tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"question": "q", "answer": "a"}\n' * 3)
    plan = make_plan([*base, "suite=gsm8k", f"suite.data_dir={tmp_path}", "suite.limit=2,5,null"], multirun=True)
    assert [listing.count_documents(cell) for cell in plan.cells] == [2, 3, 3]
    [on_hub] = make_plan([*base, "suite=gsm8k", "suite.limit=null"], multirun=False).cells
    assert listing.count_documents(on_hub) is None
    assert listing.estimate_cell(on_hub, []).seconds is None


def test_durations_as_a_reader_says_them() -> None:
    assert [listing.duration(s) for s in (None, 12.3, 300, 7200)] == ["?", "12 s", "5 min", "2.0 h"]


def test_planning_imports_no_evaluation_nor_dataframes() -> None:
    """A run that finds everything done must not pay for them."""
    code = (
        "import sys; from harness import run; from harness.results import tables, store; "
        "print([m for m in ('lm_eval', 'datasets', 'pandas', 'wandb', 'harness.cell') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
