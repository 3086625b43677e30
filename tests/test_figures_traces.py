"""Figures from traces and logs: one generation, acceptance lengths, training losses, calibration."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import synthetic_records as synthetic
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from harness.analysis.data import Data, open_data
from harness.analysis.figures import calibration, generation, lengths, training
from harness.analysis.figures.style import DPI, look, render
from harness.analysis.figures.typesetting import EOS, FAMILY, NEWLINE, UNKNOWN, Glyphs, lay_out, visible, width
from harness.analysis.trace import Step, read_steps
from harness.analysis.training import read_training

GOLDEN = Path(__file__).parent / "golden"
AR, MARS, VERIFIED = synthetic.METHODS[0], synthetic.METHODS[2], synthetic.METHODS[3]
EAGLE = ("eagle", {"top_k": 4})
MARS_16 = ("mars", {**MARS[1], "block_size": 16})


def traced(text: str, ends: Sequence[int], runs: Sequence[int], **values: Any) -> dict[str, Any]:
    """A document's answer whose tokens end at these places, committed in runs of these lengths."""
    n, k = len(ends), len(runs)
    return {
        "task": "word_problems", "doc_id": 0, "prompt_hash": "p", "group": "word_problems", "score": 1.0,
        "metrics": {"exact_match,strict-match": 1.0, "exact_match,flexible-extract": 1.0}, "text": text,
        "extracted": "7", "target": "7", "token_ids": list(range(n)), "token_ends": list(ends), "confidences": [],
        "prompt_tokens": 9, "new_tokens": n, "target_forwards": k, "draft_forwards": 0, "positions": 4 * k,
        "draft_positions": 0, "drafted": 3 * k, "accepted": max(n - k, 0), "acceptance_lengths": list(runs),
        "prefill_seconds": 0.1, "decode_seconds": 0.1, "share_seconds": 0.2, "target_seconds": 0.1,
        "draft_seconds": 0.0, "timed_forwards": max(k - 1, 0), "timed_draft_forwards": 0, "loglikelihoods": None,
        "is_greedy": None, "finish_reason": "eos", "draft_depths": [], "draft_confidences": [], "draft_right": [],
    } | values  # fmt: skip


def write(root: Path, method: tuple[str, dict[str, Any]], rows: Sequence[dict[str, Any]], number: int) -> Path:
    return synthetic.write(root, synthetic.identity(*method), rows, synthetic.times(number))


def older(root: Path) -> None:
    """Records of before token_ends and judged drafts were kept."""
    lists = ("token_ends", "draft_depths", "draft_confidences", "draft_right")
    for path in synthetic.make(root, benchmarks=synthetic.QUICK):
        synthetic.rewrite(path, lambda table: table.drop_columns([one for one in lists if one in table.column_names]))


@pytest.fixture(autouse=True)
def _no_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CHECKPOINTS", str(tmp_path / "no_checkpoints"))


def answers(root: Path, texts: Sequence[str], right: Sequence[float] | None = None) -> Data:
    """AR SFT, a token for each character, and MARS, two characters a forward; EOS at the end."""
    for number, (method, run) in enumerate(((AR, 1), (MARS, 2))):
        rows = []
        for i, text in enumerate(texts):
            ends = [*range(1, len(text) + 1), len(text)]
            runs = [min(run, len(ends) - k) for k in range(0, len(ends), run)]
            score = 1.0 if right is None or method == AR else right[i]
            rows.append(traced(text, ends, runs, doc_id=i, score=score))
        write(root, method, rows, number)
    return open_data(root, quiet=True)


# --- the trace of a document


def test_steps_are_the_answer_cut_by_forwards() -> None:
    document = traced("Tom has 3.", [3, 7, 7, 9, 10, 10], [1, 3, 0, 2])
    steps = read_steps(document)
    assert steps == [Step(("Tom",)), Step((" has", "", " 3")), Step(()), Step((".", ""))]
    assert [step.num_tokens for step in steps] == [1, 3, 0, 2]
    assert "".join(step.text for step in steps) == "Tom has 3."


def test_steps_of_one_token_and_of_characters_of_many_bytes() -> None:
    assert read_steps(traced("7", [1], [1])) == [Step(("7",))]
    assert read_steps(traced("", [0], [1])) == [Step(("",))]  # EOS at once
    # A token of a part of 🙂 ends where the one before it does; characters are counted, not bytes.
    assert read_steps(traced("é🙂", [1, 1, 2], [2, 1])) == [Step(("é", "")), Step(("🙂",))]


@pytest.mark.parametrize(
    "change",
    [
        {"token_ends": None},
        {"token_ends": pd.NA},
        {"token_ends": []},
        {"acceptance_lengths": []},
        {"acceptance_lengths": [2, 1]},
        {"text": pd.NA},
        {"text": "base64:VG9tIGhhcyAzLg=="},
        {"text": "longer than the last token ends"},
        {"token_ends": [3, 2, 7, 10]},
    ],
)
def test_what_is_not_known_is_no_trace(change: dict[str, Any]) -> None:
    document = traced("Tom has 3.", [3, 7, 9, 10], [1, 3])
    assert read_steps(document)
    assert read_steps(document | change) is None


# --- one generation


def test_generation_shows_the_median_document_that_both_got_right(tmp_path: Path) -> None:
    texts = ["aaaaaaaa", "bb", "cccc", "d", "eee"]  # without the wrong ones: bb, cccc, eee
    [figure] = generation.make(answers(tmp_path, texts, right=[0.0, 1.0, 1.0, 0.0, 1.0]))
    points = figure.points
    assert set(points["doc_id"]) == {4}
    ar, mars = points[points["method"] == "ar_sft"], points[points["method"] == "mars"]
    assert ar["text"].tolist() == mars["text"].tolist() == ["e", "e", "e", ""]
    assert ar["step"].tolist() == [1, 2, 3, 4]
    assert mars["step"].tolist() == [1, 1, 2, 2]
    assert mars["is_eos"].tolist() == [False, False, False, True]
    assert set(mars["forwards"]) == {2}
    assert set(mars["tokens"]) == {4}


def test_generation_prefers_the_fastest_cell_that_does_not_lose(tmp_path: Path) -> None:
    n = 40
    fast_wrong = [traced("abcdefgh", [*range(1, 9), 8], [8, 1], doc_id=i, score=float(i < 4)) for i in range(n)]
    slow = [traced("abcdefgh", [*range(1, 9), 8], [4, 4, 1], doc_id=i) for i in range(n)]
    alone = [traced("abcdefgh", [*range(1, 9), 8], [1] * 9, doc_id=i) for i in range(n)]
    write(tmp_path, AR, alone, 0)
    write(tmp_path, MARS_16, fast_wrong, 1)
    loses = generation.choose(open_data(tmp_path, quiet=True))
    assert loses is not None
    assert loses.loses
    assert loses.sides[1][0]["block_size"] == 16
    write(tmp_path, MARS, slow, 2)
    chosen = generation.choose(open_data(tmp_path, quiet=True))
    assert chosen is not None
    assert not chosen.loses
    assert [cell["method"] for cell, _ in chosen.sides] == ["ar_sft", "mars"]
    assert chosen.sides[1][0]["block_size"] == 4


def test_generation_is_missing_where_records_are_old_or_obscured(tmp_path: Path) -> None:
    older(tmp_path / "old")
    [figure] = generation.make(open_data(tmp_path / "old", quiet=True))
    assert figure.points.empty
    assert "harness.run" in figure.missing
    text = "base64:YWJjZA=="
    rows = [traced(text, [2, len(text)], [2], doc_id=i) for i in range(3)]
    write(tmp_path / "gated", AR, [row | {"acceptance_lengths": [1, 1], "target_forwards": 2} for row in rows], 0)
    write(tmp_path / "gated", MARS, rows, 1)
    [figure] = generation.make(open_data(tmp_path / "gated", quiet=True))
    assert figure.points.empty


def test_text_has_a_bar_behind_each_forward_and_moves_no_cursor(tmp_path: Path) -> None:
    [figure] = generation.make(answers(tmp_path, ["a\x1b[2J\nb|\u202e"]))
    text = figure.extra["txt"]
    mars = text.split("per forward\n\n")[2]
    assert mars == "a␛│[2│J│\nb|│�⟨eos⟩│\n"
    assert not set(text) & {"\x1b", "\u202e", "\r"}


def test_html_is_one_box_a_forward_and_escapes_the_text(tmp_path: Path) -> None:
    [figure] = generation.make(answers(tmp_path, ["<b>&\n"]))
    page = figure.extra["html"]
    assert len(re.findall(r"<span title=", page)) == 6 + 3
    assert page.count('title="1 token"') == 6
    assert page.count('title="2 tokens"') == 3
    assert "<b>" not in page
    assert "&lt;" in page
    assert f"{NEWLINE}\n</span>" in page
    assert page.count(EOS) == 2
    assert "http" not in page


AWKWARD = {
    "one character": "7",
    "no newline, long": "word " * 60,
    "a word longer than a line": "x" * 150,
    "tabs": "\tdef f(x):\n\t\treturn x\n",
    "only newlines": "\n" * 90,
    "wide and unknown": "数学は楽しい🙂" * 10,
    "combining": "e\u0301a\u0308" * 40,
    "dollars": "$x^2$ costs $5 and \\frac{1}{2} " * 4,
}


@pytest.mark.parametrize("text", list(AWKWARD.values()), ids=list(AWKWARD))
def test_generation_never_leaves_its_panel(text: str, tmp_path: Path) -> None:
    [figure] = generation.make(answers(tmp_path, [text]))
    assert len(figure.points) == 2 * (len(text) + 1)
    with look():
        drawing = figure.draw(figure.points)
        FigureCanvasAgg(drawing).draw()
        renderer = FigureCanvasAgg(drawing).get_renderer()
        page = drawing.bbox
        for axis in drawing.axes:
            panel = axis.get_window_extent(renderer)
            for one in [*axis.texts, *axis.patches]:
                box = one.get_window_extent(renderer)
                assert box.x0 >= panel.x0 - 1
                assert box.x1 <= panel.x1 + 1
                assert box.y0 >= panel.y0 - 1
                assert box.y1 <= panel.y1 + 1
        for heading in drawing.findobj(Text):
            if heading.get_text():
                box = heading.get_window_extent(renderer)
                assert box.x0 >= 0
                assert box.x1 <= page.x1
                assert box.y0 >= 0
                assert box.y1 <= page.y1 + 1


@pytest.mark.parametrize("text", list(AWKWARD.values()), ids=list(AWKWARD))
def test_layout_keeps_every_token_in_order_on_cells_of_its_own(text: str) -> None:
    steps = [Step(tuple(text[i : i + 3])) for i in range(0, len(text), 3)]
    marks = lay_out(steps, 40, Glyphs(4))
    taken = [(mark.line, mark.column + k) for mark in marks for k in range(mark.width)]
    assert taken == sorted(set(taken))
    assert all(0 <= column < 40 for _, column in taken)
    assert [mark.token for mark in marks] == sorted(mark.token for mark in marks)
    assert {mark.token for mark in marks} >= {i for i, one in enumerate(text) if width(one)}
    seen = "".join(mark.text for mark in marks)
    plain = [one for one in seen if one != UNKNOWN]
    assert plain == [one for one in visible(text) if one in set(plain)]


def test_layout_breaks_before_words_and_says_what_it_leaves_out() -> None:
    marks = lay_out([Step(("one ", "two ", "three"))], 9, Glyphs(4))
    assert [(mark.line, mark.column, mark.text) for mark in marks] == [(0, 0, "one "), (0, 4, "two "), (1, 0, "three")]
    cut = lay_out([Step(tuple("abc def ghi"))], 3, Glyphs(4), most_lines=2)
    assert [mark.text for mark in cut] == ["a", "b", "c", "…"]
    assert (cut[-1].line, cut[-1].step) == (1, -1)


def test_wide_characters_take_two_columns_and_combining_ones_none() -> None:
    marks = lay_out([Step(("a数", "e\u0301b"))], 9, Glyphs(4))
    assert [(mark.token, mark.column, mark.width) for mark in marks] == [(0, 0, 1), (0, 1, 2), (1, 3, 1), (1, 4, 1)]


@pytest.mark.parametrize("dpi", [DPI, 1000])
def test_columns_are_where_the_font_puts_them(dpi: int) -> None:
    """In the bitmap, where hinting rounds advances to whole pixels, and all but without it."""
    glyphs = Glyphs(generation.ADVANCE)
    with look():
        drawing, _ = generation.new_figure(7, 1)
        drawing.set_dpi(dpi)
        renderer = FigureCanvasAgg(drawing).get_renderer()
        texts = [drawing.text(0, 0, "n" * n, family=FAMILY, size=glyphs.size) for n in (1, 54)]
        one, many = (text.get_window_extent(renderer).width for text in texts)
    assert (many - one) / 53 * 72 / dpi == pytest.approx(generation.ADVANCE, rel=1e-9 if dpi == DPI else 0.01)


# --- acceptance lengths


def test_acceptance_lengths_are_shares_of_forwards(tmp_path: Path) -> None:
    runs = [[1, 4, 4], [2, 25, 30, 0]]
    rows = [traced("", [0] * sum(run), run, doc_id=i) for i, run in enumerate(runs)]
    write(tmp_path, EAGLE, rows, 0)
    [figure] = lengths.make(open_data(tmp_path, quiet=True))
    points = figure.points
    every = [length for run in runs for length in run]
    assert points["length"].tolist() == list(range(21))
    assert points["count"].tolist() == [sum(min(one, 20) == k for one in every) for k in range(21)]
    assert points["share"].sum() == pytest.approx(1)
    assert points["or_more"].tolist() == [False] * 20 + [True]
    assert set(points["mean"]) == {66 / 7}
    assert "20+" in figure.caption
    render(figure)


def test_acceptance_lengths_show_the_setting_nearest_to_the_default(tmp_path: Path) -> None:
    rows = [traced("ab", [1, 2], [2], doc_id=i) for i in range(3)]
    for number, tau in enumerate((0.5, 0.9, 1.0)):
        write(tmp_path, ("mars", {**MARS[1], "tau": tau}), rows, number)
    write(tmp_path, MARS_16, rows, 5)
    write(tmp_path, VERIFIED, rows, 6)
    write(tmp_path, AR, rows, 7)
    [figure] = lengths.make(open_data(tmp_path, quiet=True))
    shown = figure.points.drop_duplicates("key")
    found = [(m, None if pd.isna(b) else int(b), None if pd.isna(t) else float(t)) for m, b, t in
             shown[["method", "block_size", "tau"]].itertuples(index=False)]  # fmt: skip
    assert found[0] == ("ar_sft", None, None)
    assert found[2:] == [("mars", 16, 0.95), ("mars verified", 4, None)]
    assert found[1][:2] == ("mars", 4)
    assert found[1][2] in (0.9, 1.0)


def test_titles_of_many_histograms_do_not_meet(tmp_path: Path) -> None:
    rows = [traced("", [0] * 40, [12, 28], doc_id=i) for i in range(3)] + [traced("", [0], [1], doc_id=3)]
    sides = {"temperature": 0.0, "num_drafts": 4, "draft_tau": None, "block_size": 16, "tau": 0.95}
    speculative = [("speculative", {**sides, "target": "mars", "draft": draft}) for draft in ("mars", "ar_sft")]
    kinds = [AR, MARS, MARS_16, VERIFIED, EAGLE, *synthetic.METHODS[4:6], *speculative]
    for number, method in enumerate(kinds):
        write(tmp_path, method, rows, number)
    [figure] = lengths.make(open_data(tmp_path, quiet=True))
    drawing = render(figure)
    drawing.get_layout_engine().execute(drawing)
    canvas = FigureCanvasAgg(drawing)
    titles = [axis._left_title for axis in drawing.axes]
    boxes = [one.get_window_extent(canvas.get_renderer()) for one in titles if one.get_text()]
    assert len(boxes) == len(kinds)
    assert max(box.x1 for box in boxes) <= drawing.bbox.x1
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]


def test_the_mean_length_is_the_ratio_of_sums_and_its_interval_covers() -> None:
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        forwards = generator.integers(5, 40, 60)
        ease = generator.beta(6, 2, 60)  # documents differ, so forwards within one are alike
        tokens = forwards + generator.binomial(3 * forwards, ease)
        mean, low, high = lengths.mean_length(tokens, forwards)
        assert mean == tokens.sum() / forwards.sum()
        covered += low <= 1 + 3 * 0.75 <= high
    assert covered >= 0.92 * 400
    assert math.isnan(lengths.mean_length(np.array([3]), np.array([1]))[1])


def test_acceptance_lengths_leave_out_what_generated_nothing(tmp_path: Path) -> None:
    of = synthetic.identity(*AR, {"arc": ("arc_easy",)})
    rows = synthetic.documents(of, 3, {"arc": ("arc_easy",)}, np.random.default_rng(0))
    synthetic.write(tmp_path, of, rows, synthetic.times(0))
    [figure] = lengths.make(open_data(tmp_path, quiet=True))
    assert figure.points.empty
    assert "harness.run" in figure.missing


# --- calibration


def judged(generator: np.random.Generator, documents: int) -> list[dict[str, Any]]:
    rows = []
    for i in range(documents):
        n = int(generator.integers(0, 9))
        depths = generator.integers(1, 4, n).tolist()
        confidences = np.round(1 - 10 ** generator.uniform(-6.5, 0, n), 6).tolist()
        right = [bool(generator.random() < c) for c in confidences]
        drafts = {"draft_depths": depths, "draft_confidences": confidences, "draft_right": right}
        rows.append(traced("ab", [1, 2], [2], doc_id=i) | drafts)
    return rows


def test_calibration_is_that_of_a_plain_count(tmp_path: Path) -> None:
    rows = judged(np.random.default_rng(5), 200)
    write(tmp_path, VERIFIED, rows, 0)
    write(tmp_path, VERIFIED, rows, 0)
    [figure] = calibration.make(open_data(tmp_path, quiet=True))
    drafts = [
        (m, round(c * 1e6), r)
        for row in rows
        for m, c, r in zip(row["draft_depths"], row["draft_confidences"], row["draft_right"], strict=True)
    ]
    half_decades = [10, 32, 100, 316, 1000, 3162, 10_000, 31_623, 100_000, 316_228]

    def bin_of(scale: str, c: int) -> int:
        return min(c // 100_000, 9) if scale == "confidence" else sum(1_000_000 - c >= edge for edge in half_decades)

    assert figure.points["drafts"].sum() == 2 * len(drafts)
    for row in figure.points.itertuples():
        middle = round(1e6 * (row.bin_low + row.bin_high) / 2)
        own = [(c, r) for m, c, r in drafts if str(m) == row.masks]
        here = [(c, r) for c, r in own if bin_of(row.scale, c) == bin_of(row.scale, middle)]
        assert row.drafts == len(here)
        assert row.all_drafts == len(own)
        assert row.accuracy == sum(r for _, r in here) / len(here)
        assert row.confidence == pytest.approx(sum(c for c, _ in here) / len(here) / 1e6)
        assert row.accuracy_low <= row.accuracy <= row.accuracy_high
        assert row.accuracy_high - row.accuracy_low > 0.001
        assert row.plotted == (len(here) >= calibration.FEWEST)
        error = 0.0
        for k in range(10):
            group = [(c / 1e6, r) for c, r in own if bin_of("confidence", c) == k]
            error += abs(sum(r for _, r in group) - sum(c for c, _ in group)) / len(own)
        assert row.ece == pytest.approx(error)
        assert row.ece_low <= row.ece <= row.ece_high
    render(figure)


def test_calibration_counts_a_document_once_however_many_drafts_it_has() -> None:
    """Drafts that a document's fate decides together: the interval must be that of so many documents."""
    generator = np.random.default_rng(0)
    fate = generator.random(50) < 0.5
    judged = pd.DataFrame({
        "document": np.repeat(np.arange(50), 40), "confidence": 0.55, "right": np.repeat(fate, 40),
    })  # fmt: skip
    weights = generator.multinomial(50, np.full(50, 1 / 50), size=500)
    row = calibration.binned(judged, weights)[0]
    assert row["accuracy_high"] - row["accuracy_low"] > 0.2  # 2000 independent ones would give 0.04


def test_many_masks_share_lines_and_old_records_have_none(tmp_path: Path) -> None:
    depths = list(range(1, 16))
    drafts = {"draft_depths": depths, "draft_confidences": [0.5] * 15, "draft_right": [True] * 15}
    wide = ("mars", {**VERIFIED[1], "block_size": 16})
    write(tmp_path, wide, [traced("ab", [1, 2], [2], doc_id=i) | drafts for i in range(12)], 0)
    [figure] = calibration.make(open_data(tmp_path, quiet=True))
    counts = figure.points[figure.points["scale"] == "confidence"].set_index("masks")["drafts"]
    assert counts.to_dict() == {"1": 12, "2": 12, "3": 12, "4–7": 48, "8–15": 96}
    render(figure)
    older(tmp_path / "old")
    [figure] = calibration.make(open_data(tmp_path / "old", quiet=True))
    assert figure.points.empty
    assert "verify=true" in figure.missing


# --- training


def log(folder: Path, kind: str, parts: dict[str, float], steps: int = 3, **about: Any) -> Path:
    folder.mkdir(parents=True)
    manifest = {"model": "tiny", "kind": kind, "block_size": None, "created": "2026-12-01T05:00:00+00:00"} | about
    (folder / "manifest.json").write_text(json.dumps(manifest))
    lines = [
        {"loss": sum(parts.values()) / n, "step": 50 * n, "tokens": 1000 * n, "seconds": 2.0 * n}
        | {f"loss_{name}": value / n for name, value in parts.items()}
        for n in range(1, steps + 1)
    ]
    lines += [{"eval_loss": 0.5, "step": 150, "tokens": 3000, "seconds": 7.0}]
    lines += [{"train_loss": 0.7, "step": 150, "tokens": 3000, "seconds": 7.0}]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "train.jsonl"


def test_training_logs_of_all_places_are_one_frame(tmp_path: Path) -> None:
    log(tmp_path / "tiny" / "mars-b4", "mars", {"masked": 3.0, "clean": 1.0}, block_size=4, init_from="tiny/ar_sft")
    log(tmp_path / "local" / "tiny" / "mars-b8", "mars", {"masked": 2.0}, block_size=8, variant="no_sft_loss")
    log(tmp_path / "training" / "tiny" / "ar_sft", "ar_sft", {"ar": 1.0})
    frame = read_training(tmp_path, tmp_path / "nowhere", tmp_path)
    assert frame.groupby(["name", "part"]).size().to_dict() == {
        ("ar_sft", "ar"): 3, ("ar_sft", "held_out"): 1, ("ar_sft", "loss"): 3,
        ("mars-b4", "clean"): 3, ("mars-b4", "held_out"): 1, ("mars-b4", "loss"): 3, ("mars-b4", "masked"): 3,
        ("mars-b8", "held_out"): 1, ("mars-b8", "loss"): 3, ("mars-b8", "masked"): 3,
    }  # fmt: skip
    clean = frame[(frame["name"] == "mars-b4") & (frame["part"] == "clean")]
    assert clean["value"].tolist() == [1.0, 0.5, 1 / 3]
    assert clean[["step", "tokens"]].to_numpy().tolist() == [[50, 1000], [100, 2000], [150, 3000]]
    assert set(clean["init_from"]) == {"tiny/ar_sft"}
    assert frame.loc[frame["name"] == "ar_sft", "block_size"].isna().all()
    assert read_training(tmp_path / "nowhere").empty


def test_of_two_trainings_of_a_name_the_last_counts(tmp_path: Path) -> None:
    log(tmp_path / "a" / "tiny" / "ar_sft", "ar_sft", {"ar": 1.0}, created="2026-12-01T05:00:00+00:00")
    log(tmp_path / "b" / "tiny" / "ar_sft", "ar_sft", {"ar": 2.0}, created="2026-12-02T05:00:00+00:00")
    for roots in (("a", "b"), ("b", "a")):
        frame = read_training(*(tmp_path / name for name in roots))
        assert frame.loc[frame["part"] == "ar", "value"].tolist() == [2.0, 1.0, 2 / 3]


def test_damaged_logs_are_named_and_the_rest_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log(tmp_path / "tiny" / "ar_sft", "ar_sft", {"ar": 1.0})
    lines = path.read_bytes().splitlines()
    bad = [b'{"loss": 1.0, "step": 2', b"[1]", b'{"loss": "low", "step": 1, "tokens": 1, "seconds": 1}', b"\xff\xfe",
           b'{"loss": 1.0, "step": 1}', b'{"loss": 1.0, "step": 1, "tokens": 1, "seconds": NaN}', b"3"]  # fmt: skip
    nan = b'{"loss": NaN, "step": 9, "tokens": 9, "seconds": 9}'  # diverged: no value, no damage
    path.write_bytes(b"\n".join([lines[0], *bad, b"", nan, *lines[1:]]))
    (log(tmp_path / "tiny" / "eagle", "eagle", {"soft": 1.0}).parent / "manifest.json").unlink()
    (log(tmp_path / "tiny" / "medusa", "medusa", {"head_0": 1.0}).parent / "manifest.json").write_text("[]")
    log(tmp_path / "tiny" / "mars-b4", "mars", {"masked": 1.0}, block_size="four")
    told: list[tuple[str, str]] = []
    frame = read_training(tmp_path, report=lambda *one: told.append(one))
    assert frame.loc[frame["part"] == "ar", "value"].tolist() == [1.0, 0.5, 1 / 3]
    assert set(frame["name"]) == {"ar_sft"}
    assert [where for where, _ in told if where.startswith(f"{path}:")] == [f"{path}:{n}" for n in range(2, 9)]
    assert sorted(Path(where).parent.name for where, _ in told[7:]) == ["eagle", "mars-b4", "medusa"]
    assert capsys.readouterr().err == ""
    read_training(tmp_path)
    assert f"skipped: {path}:2: " in capsys.readouterr().err


def test_training_figure_has_both_streams_and_no_stream_that_is_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CHECKPOINTS", str(tmp_path / "checkpoints"))
    logs = tmp_path / "runs" / "training"
    log(logs / "tiny" / "mars-b4", "mars", {"masked": 3.0, "clean": 1.0}, block_size=4)
    log(logs / "tiny" / "mars-b4-no_sft_loss", "mars", {"masked": 2.0}, block_size=4, variant="no_sft_loss")
    log(logs / "tiny" / "medusa", "medusa", {"head_0": 1.0, "head_1": 2.0})
    log(logs / "tiny" / "eagle", "eagle", {"soft": 1.0, "regression": 2.0})
    log(tmp_path / "checkpoints" / "tiny" / "ar_sft", "ar_sft", {"ar": 1.0})
    log(tmp_path / "checkpoints" / "unmeasured" / "ar_sft", "ar_sft", {"ar": 1.0}, model="unmeasured")
    write(tmp_path / "runs", AR, [traced("ab", [1, 2], [1, 1])], 0)
    data = open_data(tmp_path / "runs", quiet=True)
    [figure] = training.make(data)
    assert set(zip(figure.points["name"], figure.points["part"], strict=True)) == {
        ("mars-b4", "masked"), ("mars-b4", "clean"), ("mars-b4-no_sft_loss", "masked"), ("medusa", "head_0"),
        ("medusa", "head_1"), ("eagle", "soft"), ("ar_sft", "ar"),
    }  # fmt: skip
    assert set(figure.points["model"]) == {"tiny"}
    drawing = render(figure)
    labels = [text.get_text() for axis in drawing.axes for text in axis.get_legend().get_texts()]
    assert labels == [
        "B = 4", "B = 4, without SFT loss", "masked stream", "clean stream",
        "AR SFT: next token", "Medusa: heads 1 to 2", "EAGLE: soft cross-entropy",
    ]  # fmt: skip
    assert all(axis.get_yscale() == "log" for axis in drawing.axes)


# --- all of them


def golden() -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Records and documents of the golden cells, read without the loader."""
    paths = [path for path in GOLDEN.iterdir() if path.is_dir()]
    return {
        path.name: (
            json.loads((path / "record.json").read_text("utf-8")),
            pq.read_table(path / "documents.parquet").to_pylist(),
        )
        for path in paths
    }


def test_golden_acceptance_lengths_are_the_records_counts() -> None:
    records = golden()
    [figure] = lengths.make(open_data(GOLDEN, quiet=True))
    shown = list(dict.fromkeys(figure.points["key"]))
    names = [records[key][0]["identity"]["method"]["name"] for key in shown]
    assert names == ["ar_sft", "mars", "mars", "block_diffusion", "jacobi", "medusa", "eagle", "speculative"]
    for key in shown:
        record, _ = records[key]
        part = figure.points[figure.points["key"] == key]
        assert part["count"].tolist() == record["speed"]["acceptance_counts"]
        assert part["mean"].iloc[0] == record["speed"]["new_tokens"] / record["speed"]["target_forwards"]
        assert record["identity"]["method"]["axes"].get("tau") in (None, 0.95)
        assert record["identity"]["cache"]["mode"] == "cursor"


def test_golden_generation_is_the_documents_text() -> None:
    records = golden()
    [figure] = generation.make(open_data(GOLDEN, quiet=True))
    for key, part in figure.points.groupby("key"):
        _, documents = records[str(key)]
        [document] = [row for row in documents if row["doc_id"] == part["doc_id"].iloc[0]]
        assert "".join(part["text"]) == document["text"]
        runs = part.groupby("step").size().reindex(range(1, document["target_forwards"] + 1), fill_value=0)
        assert runs.tolist() == document["acceptance_lengths"]
        assert document["score"] == 1
    sides = [records[key][1] for key in figure.points["key"].unique()]
    right = [{row["doc_id"]: row["new_tokens"] for row in rows if row["score"] == 1} for rows in sides]
    shared = sorted(right[1][doc_id] for doc_id in right[0].keys() & right[1].keys())
    assert right[1][figure.points["doc_id"].iloc[0]] == shared[(len(shared) - 1) // 2]


def test_golden_calibration_counts_every_judged_draft() -> None:
    [figure] = calibration.make(open_data(GOLDEN, quiet=True))
    key = figure.points["key"].iloc[0]
    documents = golden()[key][1]
    for masks, part in figure.points.groupby("masks"):
        judged = [
            (c, r)
            for row in documents
            for m, c, r in zip(row["draft_depths"], row["draft_confidences"], row["draft_right"], strict=True)
            if m == int(str(masks))
        ]
        for scale in ("confidence", "doubt"):
            bins = part[part["scale"] == scale]
            assert bins["drafts"].sum() == len(judged)
            assert (bins["accuracy"] * bins["drafts"]).sum() == pytest.approx(sum(r for _, r in judged))
            assert (bins["confidence"] * bins["drafts"]).sum() == pytest.approx(sum(c for c, _ in judged))


def test_the_same_points_are_drawn_again_from_their_file(tmp_path: Path) -> None:
    """Points say all: what their CSV file holds draws the same picture."""
    rows = [row | {"score": 1.0} for row in judged(np.random.default_rng(1), 60)]
    write(tmp_path / "runs", AR, [traced("ab\n", [1, 2, 3, 3], [1] * 4, doc_id=i) for i in range(60)], 0)
    write(tmp_path / "runs", MARS, [traced("ab\n", [1, 2, 3, 3], [3, 1], doc_id=i) for i in range(60)], 1)
    write(tmp_path / "runs", VERIFIED, rows, 2)
    log(tmp_path / "runs" / "training" / "tiny" / "mars-b4", "mars", {"masked": 3.0, "clean": 1.0}, block_size=4)
    data = open_data(tmp_path / "runs", quiet=True)
    for module in (generation, lengths, training, calibration):
        [figure] = module.make(data)
        figure.points.to_csv(tmp_path / "points.csv", index=False)
        again = dataclasses.replace(figure, points=pd.read_csv(tmp_path / "points.csv"))
        pictures = []
        for one in (figure, again):
            drawing = render(one)
            drawing.set_dpi(50)
            canvas = FigureCanvasAgg(drawing)
            canvas.draw()
            pictures.append(np.asarray(canvas.buffer_rgba()))
        assert (pictures[0] < 255).any()
        assert np.array_equal(*pictures), figure.name
