"""harness.diagnose: near-ties are told from bugs, on random models in bfloat16, where near-ties are frequent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import evaluation_fakes
import micro
import pytest
import torch

from harness import diagnose
from harness.diagnose import Difference
from harness.engine.commit import Commit
from harness.engine.rows import Completion, Request, Row
from harness.engine.stats import SequenceStats
from harness.engine.window import Output
from harness.evaluation import evaluate
from harness.models import load
from methods.ar_sft import ArSft


@dataclass
class Unsteady(ArSft):
    """AR as if it rounded otherwise: of two tokens within ``threshold`` spacings it takes the other one."""

    name: ClassVar[str] = "unsteady"
    threshold: int = 1

    def accept(self, rows: list[Row], output: Output) -> Commit:
        top, ids = output.logits[:, 0].float().topk(2)
        spacing = 2.0 ** (top[:, 0].abs().log2().floor() - 7)
        return Commit.one(torch.where(top[:, 0] - top[:, 1] <= self.threshold * spacing, ids[:, 1], ids[:, 0])[:, None])


@dataclass
class Broken(ArSft):
    """Says the second best token in one place of each answer, however clear the best one is."""

    name: ClassVar[str] = "broken"

    def accept(self, rows: list[Row], output: Output) -> Commit:
        ids = output.logits[:, 0].topk(2).indices
        second = torch.tensor([row.new_tokens == 3 for row in rows])
        return Commit.one(torch.where(second, ids[:, 1], ids[:, 0])[:, None])


@dataclass
class Short(ArSft):
    """Ends each answer after five tokens."""

    name: ClassVar[str] = "short"

    def accept(self, rows: list[Row], output: Output) -> Commit:
        ids = output.logits[:, 0].argmax(-1)
        ends = torch.tensor([row.new_tokens == 4 for row in rows])
        return Commit.one(torch.where(ends, self.context.target.eos_token_ids[0], ids)[:, None])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and the methods above as a user's own."""
    root = tmp_path_factory.mktemp("diagnose")
    net = micro.model(tied=False)
    with torch.no_grad():
        net.lm_head.weight[micro.VOCABULARY :] = 0  # no padding row is ever the answer
    micro.save(root / "random", net)
    (root / "conf" / "method").mkdir(parents=True)
    for cls in (Unsteady, Broken, Short):
        text = f"_target_: {__name__}.{cls.__name__}\nname: {cls.name}\n"
        (root / "conf" / "method" / f"{cls.name}.yaml").write_text(text)
    return root


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command; gives its status and what it printed."""
    monkeypatch.setenv("COLUMNS", "80")
    load._kept.clear()

    def command(method: str, *overrides: str, limit: int = 12) -> tuple[int, str]:
        own = ["--config-dir", str(folder / "conf"), "model=local", f"model.path={folder / 'random'}", "variant=base"]
        size = [f"suite.limit={limit}", "suite.max_gen_toks=40", "batch_size=4", "threads=1"]
        status = diagnose.main([*own, f"method={method}", *size, *overrides])
        out, err = capsys.readouterr()
        return status, out + err

    return command


# The command


def test_rounding_is_told_from_a_bug(run: Any) -> None:
    status, out = run("unsteady", "dtype=bfloat16")
    assert status == 0, out
    assert "0 differ otherwise" in out
    assert "near-tie\n" in out.replace(" \n", "\n"), "or nothing was shown"
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "unsteady against AR · random · quick · bfloat16 · batch 4" in out
    status, out = run("broken", "dtype=bfloat16")
    assert status == 1
    assert "not a tie" in out
    assert "0 differ otherwise" not in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_an_answer_that_ends_early_is_a_bug(run: Any) -> None:
    status, out = run("short", "dtype=bfloat16", limit=3)
    assert status == 1
    assert "3 documents: 0 equal, 0 differ by near-ties, 3 differ otherwise" in out


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_lossless_method_passes(run: Any, dtype: str) -> None:
    status, out = run("jacobi", f"dtype={dtype}")
    assert status == 0, out
    if dtype == "float64":
        assert "12 documents: 12 equal, 0 differ by near-ties, 0 differ otherwise" in out


def test_a_wider_margin_does_not_hide_a_coarser_method(run: Any) -> None:
    """Tokens forty spacings apart are no tie for bfloat16."""
    status, out = run("unsteady", "dtype=bfloat16", "+method.threshold=40")
    assert status == 1, out


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["method=mars"], ["method='mars'", "lossless", "fix: verify=true"]),
        (["method=ar_sft", "temperature=0.5"], ["temperature=0.5", "fix: temperature=0"]),
        (["-m", "method=jacobi"], ["one configuration at a time"]),
        (["method=jacobi", "suite.limit=0"], ["suite.limit=0"]),
        (["method=jacoby"], ["method='jacoby'", "method=jacobi"]),
    ],
)
def test_what_cannot_be_compared_is_refused(
    overrides: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert diagnose.main([*overrides, "model=tiny"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    for part in parts:
        assert part in err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagnose.main(["--help"]) == 0
    assert "python -m harness.diagnose method=" in capsys.readouterr().out


# Its parts


def completion(tokens: list[int], reason: str = "length") -> Completion:
    return Completion(("task", 0), [1, 2], tokens, "", SequenceStats(finish_reason=reason), [])


def test_the_first_difference_is_found() -> None:
    assert diagnose.find(completion([1, 2, 3]), completion([1, 2, 3])) is None
    found = diagnose.find(completion([1, 2, 3]), completion([1, 5, 4]))
    assert found is not None
    assert (found.place, found.ar, found.method) == (1, 2, 5)
    shorter = diagnose.find(completion([1, 2, 3]), completion([1, 2]))
    assert shorter is not None
    assert (shorter.place, shorter.ar, shorter.method) == (2, 3, None)
    other_end = diagnose.find(completion([1, 2]), completion([1, 2], "eos"))
    assert other_end is not None
    assert diagnose.bugs([shorter, other_end]) == [shorter, other_end]


def test_what_counts_as_a_tie() -> None:
    gap = Difference(("task", 0), 0, 1, 2, exact=0.5, noise=0.25, spacing=0.125)
    assert diagnose.bugs([gap]) == []
    assert diagnose.bugs([replace(gap, exact=-0.5)]) == [], "AR may be the one that rounding turned round"
    assert diagnose.bugs([replace(gap, exact=0.51)]) == [replace(gap, exact=0.51)]
    assert diagnose.bugs([replace(gap, noise=0.0, exact=0.125)]) == [], "one spacing is the last rounding"
    other = replace(gap, noise=0.3, exact=0.0)
    assert diagnose.bugs([replace(gap, exact=0.6), other]) == [], "rounding is measured on all answers together"


@pytest.mark.parametrize("cache", ["cursor", "block", "none"])
def test_gaps_are_those_of_plain_forwards(folder: Path, cache: str) -> None:
    """In float64 the three ways of computing agree, and with transformers' own forward; in bfloat16 they nearly do."""
    spec = {"name": "random", "source": "local", "path": str(folder / "random")}
    request = Request(list(range(5, 25)), 40, key=("task", 0))
    shared = [7, 9, 30, 31, 200, 12, 3]
    caching = {"cache": cache, "cache_block": 4, "accept_limit": "block_size"}
    part = Difference(("task", 0), len(shared), 40, 41)
    found = {}
    for dtype in ("float64", "bfloat16"):
        loaded = load.load(spec, method=ArSft, variant="base", dtype=dtype)
        exact = diagnose._wider(loaded.model)
        found[dtype] = diagnose.explain(loaded, exact, request, shared, part, caching)
        assert loaded.model.dtype == getattr(torch, dtype), "the run's own model is left as it was"
        plain = micro.logits(exact, request.prompt_ids + shared)[-1]
        assert found[dtype].exact == pytest.approx(float(plain[40] - plain[41]), abs=1e-4)
    highest = micro.logits(loaded.model, request.prompt_ids + shared)[-1, 40:42].float().abs().max()
    fine, coarse = found["float64"], found["bfloat16"]
    assert fine.whole == pytest.approx(fine.exact, abs=1e-12)
    assert fine.cached == pytest.approx(fine.exact, abs=1e-12)
    assert fine.noise < 1e-12
    assert 1e-4 < coarse.noise < 0.5
    for gap in (coarse.whole, coarse.cached):
        assert gap != coarse.exact
        assert gap == pytest.approx(coarse.exact, abs=2 * coarse.noise + coarse.spacing)
    above = torch.nextafter(highest.bfloat16(), torch.tensor(torch.inf, dtype=torch.bfloat16))
    assert coarse.spacing == float(above.double() - highest)


def test_requests_are_those_of_an_evaluation() -> None:
    model = evaluation_fakes.loaded()
    suite = evaluation_fakes.suite("quick", "suite.limit=4", "suite.max_gen_toks=30")
    engine = evaluation_fakes.FakeEngine(model, lambda prompt, request: "#### 1")
    asked = evaluate.requests(engine, model, suite, seed=3)
    assert not engine.requests, "nothing was generated"
    evaluate.evaluate(engine, model, suite, seed=3)
    assert asked == engine.requests
    assert len(asked) == 4
