"""Figures of cells and the command: points are the records' numbers, every drawing is legible, one failure is one."""

from __future__ import annotations

import io
import itertools
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import synthetic_records as made
from matplotlib.figure import Figure as Drawing
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from harness import figures as command
from harness.analysis import figures as package
from harness.analysis.data import Data, open_data
from harness.analysis.figures import Figure, equal_quality, frontier, make_figures, speed, style
from harness.analysis.figures.labels import label_points
from harness.analysis.figures.settings import ends, matrices, resampled_ratios, settings
from harness.results.stats import bonett_price

GOLDEN = Path(__file__).parent / "golden"
MAKERS = ("equal_quality:make", "frontier:fig3", "speed:speedup", "speed:tokens_per_forward", "frontier:fig6")
OWN = ("equal_quality", "fig3", "fig6", "speedup", "tokens_per_forward")


@pytest.fixture(autouse=True)
def _own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of traces and logs have their own tests."""
    assert set(MAKERS) < set(package.MAKERS)
    monkeypatch.setattr(package, "MAKERS", MAKERS)


@pytest.fixture(scope="module")
def golden() -> Data:
    return open_data(GOLDEN, quiet=True)


@pytest.fixture(scope="module")
def figures(golden: Data) -> dict[str, Figure]:
    return of_cells(golden)


def of_cells(data: Data) -> dict[str, Figure]:
    """The five figures of this file by name."""
    found = [*equal_quality.make(data), *frontier.make(data), *speed.make(data)]
    assert sorted(one.name for one in found) == sorted(OWN)
    return {one.name: one for one in found}


def records(root: Path = GOLDEN) -> dict[str, dict[str, Any]]:
    """Records by key, read without the loader."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in root.glob("**/record.json")]
    return {one["key"]: one for one in found}


def rows_of(key: str) -> list[dict[str, Any]]:
    return pq.read_table(next(GOLDEN.glob(f"**/{key}")) / "documents.parquet").to_pylist()


def csv_of(figure: Figure) -> pd.DataFrame:
    """Points as their file has them."""
    text = figure.points.to_csv(index=False, float_format="%.12g")
    return pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])


# --- points


def test_fig3_has_the_records_scores_and_ratios(figures: dict[str, Figure]) -> None:
    points = csv_of(figures["fig3"])
    measured = points[points["source"] == "measured"].set_index("key")
    expected = {
        key: one for key, one in records().items()
        if one["identity"]["method"]["axes"].get("confidence") != "entropy"
    }  # fmt: skip
    assert len(expected) == 11
    assert set(measured.index) == set(expected)
    for key, record in expected.items():
        documents, row = rows_of(key), measured.loc[key]
        tokens, forwards = (sum(one[name] for one in documents) for name in ("new_tokens", "target_forwards"))
        assert row["tokens_per_forward"] == pytest.approx(tokens / forwards, rel=1e-11)
        assert row["score"] == pytest.approx(100 * sum(one["score"] for one in documents) / 30, rel=1e-11)
        score = record["benchmarks"]["word_problems"]["score"]
        assert [row["score_low"], row["score_high"]] == pytest.approx([100 * score["low"], 100 * score["high"]])
    assert measured[measured["is_one_token"]]["tau"].tolist() == [1.0]


def test_fig3_has_the_papers_sweep(figures: dict[str, Figure]) -> None:
    points = figures["fig3"].points
    paper = points[(points["source"] == "paper") & (points["panel"] == "Qwen2.5-0.5B, GSM8K")]
    curve = paper[(paper["series"] == "paper: MARS B=4")]
    assert curve["tau"].tolist() == [1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5]
    table = pd.read_csv(command.RESULTS / "paper" / "table8_tau_sweep.csv")
    rows = table[(table["scale"] == "0.5b") & (table["task"] == "gsm8k") & (table["block_size"] == 4)
                 & table["variant"].isna()].sort_values("tau", ascending=False)  # fmt: skip
    assert curve["score"].tolist() == rows["score"].tolist()
    assert curve["tokens_per_forward"].tolist() == rows["tokens_per_forward"].tolist()
    assert (curve["score_low"] < curve["score"]).all()
    assert paper[paper["method"] == "ar_sft"]["score"].tolist() == [32.0]


def test_fig6_has_the_metrics_that_were_measured(figures: dict[str, Figure]) -> None:
    figure = figures["fig6"]
    curves = figure.points[figure.points["method"] == "mars"]
    found = curves.groupby("confidence")["tau"].apply(list).to_dict()
    assert found == {"entropy": [0.3], "probability": [1.0, 0.95, 0.7]}, "one of them has the block cache"
    assert "Not measured: margin." in figure.caption


def test_tokens_per_forward_resamples_documents(figures: dict[str, Figure]) -> None:
    points = figures["tokens_per_forward"].points.set_index("key")
    key = next(key for key, one in records().items() if one["identity"]["method"]["name"] == "jacobi")
    rows, generator = rows_of(key), np.random.default_rng(1)
    ratios = []
    for _ in range(2000):
        drawn = [rows[i] for i in generator.integers(len(rows), size=len(rows))]
        ratios.append(sum(one["new_tokens"] for one in drawn) / sum(one["target_forwards"] for one in drawn))
    expected, width = np.quantile(ratios, [0.025, 0.975]), np.ptp(np.quantile(ratios, [0.025, 0.975]))
    row = points.loc[key]
    assert width > 0.005
    assert [row["low"], row["high"]] == pytest.approx(list(expected), abs=0.15 * width)
    assert points[points["source"] == "paper"]["value"].tolist()[:3] == [1.2, 1.23, 1.21]  # IFEval, B = 4, 8, 16


def test_speedup_is_against_ar_on_the_same_machine(figures: dict[str, Figure], tmp_path: Path) -> None:
    points = figures["speedup"].points
    assert len(points) == 11
    ar = next(key for key, one in records().items() if one["identity"]["method"]["name"] == "ar_sft")
    rate = {key: sum(row["new_tokens"] for row in rows_of(key)) / sum(row["share_seconds"] for row in rows_of(key))
            for key in records()}  # fmt: skip
    for row in points.to_dict("records"):
        assert row["reference"] == ar
        assert row["speedup"] == pytest.approx(rate[row["key"]] / rate[ar], rel=1e-9)
        assert row["speedup_low"] < row["speedup"] < row["speedup_high"]
    other = Path(shutil.copytree(GOLDEN, tmp_path / "other"))
    made.edit(other / points["key"][0], lambda found: found["config"].update(batch_size=2))
    kept = of_cells(open_data(other, quiet=True))["speedup"].points
    assert set(points["key"]) - set(kept["key"]) == {points["key"][0]}


def graded(root: Path, cells: Sequence[tuple[float, int, int]], n: int = 600) -> Data:
    """AR SFT that is always right, and MARS at these thresholds with so many losses and tokens per forward."""

    def rows(of: dict[str, Any], losses: int, width: int) -> list[dict[str, Any]]:
        found = made.documents(of, n, made.QUICK, np.random.default_rng(0))
        for i, row in enumerate(found):
            score = float(i >= losses)
            row |= {
                "score": score,
                "metrics": dict.fromkeys(row["metrics"], score),
                "acceptance_lengths": [width] * 2,
                "new_tokens": 2 * width,
                "target_forwards": 2,
                "share_seconds": 0.2,
                "token_ids": [1] * 2 * width,
            }
        return found

    for number, (tau, losses, width) in enumerate(((math.nan, 0, 1), *cells)):
        method = made.AR if math.isnan(tau) else ("mars", {**made.METHODS[1][1], "tau": tau})
        of = made.identity(*method)
        made.write(root, of, rows(of, losses, width), made.times(number))
    return open_data(root, quiet=True)


def test_equal_quality_takes_the_fastest_setting_within_each_bound(tmp_path: Path) -> None:
    cells = [(0.95, 0, 2), (0.9, 2, 3), (0.8, 14, 4), (0.7, 60, 6)]
    points = equal_quality.make(graded(tmp_path, cells))[0].points
    level, z = 1 - 0.05 / 4, NormalDist().inv_cdf(1 - 0.05 / 8)
    lows = []
    for _, losses, _ in cells:  # Bonett and Price's, by hand
        down, up = (losses + 1) / 602, 1 / 602
        lows.append(100 * (up - down - z * math.sqrt((up + down - (up - down) ** 2) / 602)))
    expected = [max(cell[2] for cell, low in zip(cells, lows, strict=True) if low > -bound) for bound in (1, 2, 5)]
    assert expected == [2, 3, 4], lows
    for name in ("tokens_per_forward", "speedup"):
        part = points[points["speed"] == name]
        assert part["bound"].tolist() == [1, 2, 5]
        assert part["value"].tolist() == pytest.approx(expected)
        assert part["low"].tolist() == pytest.approx([lows[i] for i in (0, 1, 2)])
        assert part["difference"].tolist() == pytest.approx([0, -100 * 2 / 600, -100 * 14 / 600])
        assert part["setting"].tolist() == ["τ=0.95 B=4", "τ=0.9 B=4", "τ=0.8 B=4"]
    assert points["level"].unique().tolist() == [level]
    assert points["num_settings"].unique().tolist() == [4]


def test_more_settings_tried_widen_the_bound(tmp_path: Path) -> None:
    few = equal_quality.make(graded(tmp_path / "few", [(0.9, 2, 3)]))[0].points
    many = [(0.9, 2, 3), *((0.5 - i / 1000, 300, 2) for i in range(12))]
    more = equal_quality.make(graded(tmp_path / "many", many))[0].points
    assert few["value"].notna().tolist()[:3] == [True, True, True]
    assert more["value"].notna().tolist()[:3] == [False, True, True]
    assert more["best_low"][0] < -1 < few["best_low"][0]


def test_too_few_documents_show_nothing(figures: dict[str, Figure]) -> None:
    figure = figures["equal_quality"]
    assert figure.points["value"].isna().all()
    assert (figure.points["best_low"] <= -5).all()
    assert "none within 5 points" in " ".join(text for text, _ in drawn(figure))


def test_paired_interval_is_the_tables_at_their_level() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.random(200) < 0.7).astype(float), (generator.random(200) < 0.6).astype(float)
    found = equal_quality.paired_interval(a, b, ["one"] * 200, 0.95)
    wins, losses = int((a > b).sum()), int((a < b).sum())
    assert (found.low, found.high) == pytest.approx(bonett_price(wins, losses, 200))
    tasks = [f"task {i % 10}" for i in range(200)]
    a[::10] = 1.0
    b[::10] = 0.0  # one subtask has all the gain: its documents are no independent ones
    clustered = equal_quality.paired_interval(a, b, tasks, 0.95)
    assert clustered.low < equal_quality.paired_interval(a, b, ["one"] * 200, 0.95).low - 0.02
    uneven = equal_quality.paired_interval(a / 2 + 0.1, b / 3, ["one"] * 200, 0.95)
    differences = a / 2 + 0.1 - b / 3
    error = 1.97196 * differences.std(ddof=1) / math.sqrt(200)
    assert (uneven.low, uneven.high) == pytest.approx(
        (differences.mean() - error, differences.mean() + error), rel=1e-4
    )


def test_points_do_not_depend_on_the_order_of_folders(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in "ab"]
    for number, path in enumerate(sorted(GOLDEN.iterdir())):
        if path.is_dir():
            shutil.copytree(path, roots[number % 2] / path.name)
    first, second = (of_cells(open_data(*order, quiet=True)) for order in (roots, roots[::-1]))
    for name in OWN:
        pd.testing.assert_frame_equal(first[name].points, second[name].points)


def test_a_setting_counts_once(tmp_path: Path) -> None:
    made.make_many(tmp_path, 21, 20)
    cells = settings(open_data(tmp_path, quiet=True))
    assert len(cells) == 7
    assert set(cells["seed"]) == {2}  # the newest


def test_settings_with_other_caches_or_drafts_are_no_points_of_one_curve(tmp_path: Path) -> None:
    caches: list[dict[str, Any]] = [{"mode": "cursor"}, {"mode": "none"}]
    caches += [{"mode": "block", "block": size, "accept_limit": "block_size"} for size in (4, 32)]
    sides = [{"target": target, "draft": draft} for target, draft in (("ar_sft", "ar_sft"), ("mars", "ar_sft"))]
    found = [made.identity(*made.METHODS[1], cache=cache) for cache in caches]
    found += [made.identity("speculative", made.METHODS[6][1] | side) for side in sides]
    for number, of in enumerate(found):
        made.write(tmp_path, of, made.documents(of, 5, made.QUICK, np.random.default_rng(0)), made.times(number))
    points = frontier.fig3(open_data(tmp_path, quiet=True)).points
    assert set(points.loc[points["source"] == "measured", "series"]) == {
        "MARS B=4", "MARS B=4 no cache", "MARS B=4 block cache 4", "MARS B=4 block cache 32",
        "Speculative AR → AR", "Speculative AR → MARS",
    }  # fmt: skip


def test_resampled_ratios() -> None:
    generator = np.random.default_rng(0)
    below = generator.integers(1, 9, (40, 3)).astype(float)
    above = below * [1.0, 3.0, 2.0]
    above[:, 2] += generator.integers(0, 5, 40)
    ratios = resampled_ratios(above, below)
    assert np.ptp(ratios[:, 0]) == 0
    assert ends(ratios[:, 1]) == pytest.approx((3, 3))
    assert ends(ratios[:, 2])[0] < above[:, 2].sum() / below[:, 2].sum() < ends(ratios[:, 2])[1]
    assert (resampled_ratios(above, below) == ratios).all()
    above[1:, 0], above[:20, 1] = math.nan, math.nan
    fewer = resampled_ratios(above, below)
    assert np.isnan(fewer[:, 0]).all()
    assert (fewer[:, 1] == 3).all()
    assert (fewer[:, 2] == ratios[:, 2]).all()


def test_documents_meet_by_task_and_number(golden: Data) -> None:
    keys = sorted(records())[:2]
    matrix = matrices(golden, keys, ["new_tokens"])["word_problems"]
    for key in keys:
        expected = [row["new_tokens"] for row in sorted(rows_of(key), key=lambda row: row["doc_id"])]
        assert matrix.values["new_tokens"][:, matrix.places[key]].tolist() == expected


# --- drawings


def drawn(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text that is really drawn, with its box in pixels; fails where one leaves the page."""
    texts: list[Text] = []
    original = Text.draw

    def draw(self: Text, renderer: Any) -> None:
        if self.get_visible() and self.get_text().strip() and not any(self is one for one in texts):
            texts.append(self)
        original(self, renderer)

    with pytest.MonkeyPatch.context() as patch:
        drawing = style.render(figure)
        patch.setattr(Text, "draw", draw)
        with style.look():
            drawing.canvas.draw()
    boxes = [(one.get_text(), one.get_window_extent()) for one in texts]
    width, height = drawing.bbox.size
    outside = [text for text, box in boxes if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1]
    assert not outside, f"{figure.name}: beyond the page: {outside}"
    return boxes


def assert_legible(figure: Figure) -> None:
    """No two texts overlap by more than a pixel."""
    texts = drawn(figure)
    left, low, right, high = np.array([box.extents for _, box in texts]).T[:, :, None]
    across, up = (
        np.minimum(right, right.T) - np.maximum(left, left.T),
        np.minimum(high, high.T) - np.maximum(low, low.T),
    )
    over = np.argwhere(np.triu((across > 1) & (up > 1), k=1)).tolist()
    assert not over, f"{figure.name}: {[(texts[a][0], texts[b][0]) for a, b in over]}"


def test_labels_do_not_overlap(figures: dict[str, Figure]) -> None:
    for figure in figures.values():
        assert_legible(figure)


def test_awkward_data_is_drawn(tmp_path: Path) -> None:
    root = tmp_path / "results"
    mars = made.METHODS[1][1]
    for model, tau, size in itertools.product(("tiny", "a-model-with-a-very-long-name-7b"), (0.5, 0.9, 1.0), (2, 64)):
        others = (made.AR, ("my_own_method", {"wings": "many " * 9})) if (tau, size) == (1.0, 64) else ()
        for method in (("mars", {**mars, "tau": tau, "block_size": size}), *others):
            of = made.identity(*method, made.SUITE, model=model)
            rows = made.documents(of, 9, made.SUITE, np.random.default_rng(int(10 * tau)))
            made.write(root, of, rows, made.times(size))
    data = open_data(root, quiet=True)
    for name, figure in of_cells(data).items():
        if name != "fig6":
            assert_legible(figure)
    one = open_data(made.write(tmp_path / "one", made.identity(*made.METHODS[4]), [
        made.documents(made.identity(*made.METHODS[4]), 1, made.QUICK, np.random.default_rng(0))[0]
    ], made.times(0)), quiet=True)  # fmt: skip
    for figure in of_cells(one).values():
        if len(figure.points):
            assert_legible(figure)


def test_fifteen_panels_are_cut_and_it_is_said(tmp_path: Path) -> None:
    for number in range(15):
        for offset, method in enumerate((made.AR, made.METHODS[1])):
            of = made.identity(*method, model=f"model-{number:02}")
            rows = made.documents(of, 4, made.QUICK, np.random.default_rng(number))
            made.write(tmp_path, of, rows, made.times(2 * number + offset))
    for name, figure in of_cells(open_data(tmp_path, quiet=True)).items():
        if name != "fig6":
            limit = {"fig3": 7, "tokens_per_forward": 11}.get(
                name, 9
            )  # two panels of fig3 and of Table 4 are the paper's
            assert f"Left out for want of room: {limit}" in figure.caption, figure.caption
            assert_legible(figure)


def test_missing_intervals_are_drawn(figures: dict[str, Figure]) -> None:
    for figure in figures.values():
        points = figure.points.copy()
        for column in points.columns:
            if column.endswith(("low", "high")) and column != "best_low":
                points[column] = np.nan
        with style.look():
            figure.draw(points).draw_without_rendering()


def test_labels_without_room_are_left_out() -> None:
    with style.look():
        drawing, axes = style.new_figure(3, 2)
        axes[0, 0].set(xlim=(0, 1), ylim=(0, 1))
        drawing.get_layout_engine().execute(drawing)  # type: ignore[union-attr]
        points = [(0.5 + i / 1000, 0.5, f"label {i}") for i in range(30)]
        without = label_points(axes[0, 0], [(0.5, 0.5, ""), *points, (0.05, 0.9, "alone")])
    placed = list(axes[0, 0].texts)
    assert len(without) + len(placed) == 31
    assert 1 < len(placed) < 12
    marker = axes[0, 0].transData.transform((0.5, 0.5))
    assert not any(one.get_window_extent().contains(*marker) for one in placed)
    assert "alone" not in without
    for a, b in itertools.combinations([one.get_window_extent() for one in placed], 2):
        assert not a.overlaps(b)


# --- styles and files


def test_every_method_has_a_style_of_its_own() -> None:
    known = style.METHOD_STYLES.values()
    for look in ("name", "color", "marker"):
        assert len({getattr(one, look) for one in known}) == len(known), look
    own = style.style("my_method")
    assert own == style.style("my_method")
    assert own.name == "my method"
    assert own.marker not in {one.marker for one in known}
    assert own.color not in {one.color for one in known}
    assert style.display("mars", "no_sft_loss") == "MARS without SFT loss"


def test_files_are_the_same_for_the_same_points(figures: dict[str, Figure], tmp_path: Path) -> None:
    figure = figures["speedup"]
    first = [path.read_bytes() for path in style.save(figure, tmp_path / "a")]
    with style.mpl.rc_context({"font.size": 20, "pdf.compression": 0, "axes.grid": False}):  # a user's own
        paths = style.save(figure, tmp_path / "b")
    assert [path.name for path in paths] == ["speedup.pdf", "speedup.png", "speedup.csv"]
    assert [path.read_bytes() for path in paths] == first
    assert b"CreationDate" not in first[0]
    assert b"/Type3" not in first[0]
    assert b"/CIDFontType2" in first[0] or b"/TrueType" in first[0]


def test_a_figure_without_points_has_no_files(tmp_path: Path) -> None:
    figure = Figure("none", "", "", pd.DataFrame(), lambda points: Drawing(), "make it")
    assert style.save(figure, tmp_path) == []
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="make it"):
        style.render(figure)


# --- all of them, and the command


def test_one_broken_figure_does_not_lose_the_others(
    golden: Data, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [one.name for one in make_figures(golden)]
    assert whole[0] == "equal_quality"
    assert {*OWN} == {*whole}
    monkeypatch.setattr(frontier, "fig3", lambda data: 1 / 0)
    assert [one.name for one in make_figures(golden)] == [name for name in whole if name != "fig3"]
    assert "frontier:fig3" in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(shutil.copytree(GOLDEN, tmp_path / "golden"))
    damaged = next(path for path in sorted(root.iterdir()) if path.is_dir())
    made.truncate(damaged / "documents.parquet")
    out, only = tmp_path / "out", ["--only", "table4", "fig6", "speedup"]
    monkeypatch.setattr(package, "MAKERS", ("speed:speedup", "frontier:fig6"))
    assert command.main([str(root), "--out", str(out), *only]) == 0
    said = capsys.readouterr().out
    assert f"{damaged}: documents.parquet cannot be read" in said
    assert sorted(path.name for path in out.iterdir()) == [
        *(f"{name}.{suffix}" for name in ("fig6", "speedup") for suffix in ("csv", "pdf", "png")),
        *(f"table4.{suffix}" for suffix in ("csv", "md", "tex")),
    ]  # fmt: skip
    monkeypatch.setattr(speed, "draw_speedup", lambda points: 1 / 0)
    assert command.main([str(root), "--out", str(out), *only]) == 1
    said = capsys.readouterr()
    assert "speedup: ZeroDivisionError" in said.out
    assert "fig6 " in said.out


def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAKERS", ("frontier:fig6",))
    assert command.main([str(tmp_path / "nowhere")]) == 2
    assert "FOLDER=" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert command.main([str(GOLDEN), "--out", str(tmp_path / "file" / "below"), "--only", "fig6"]) == 2
    assert "--out=" in capsys.readouterr().err
    assert command.main([str(GOLDEN), "--out", str(tmp_path), "--only", "fig7"]) == 2
    assert "--only='fig7': of table2" in capsys.readouterr().err


def test_a_full_disk_leaves_no_half_file(
    figures: dict[str, Figure], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file stays as it was, the mistake is told, and nothing temporary is left."""
    monkeypatch.setattr(package, "MAKERS", ("frontier:fig6",))
    (tmp_path / "fig6.png").write_text("old")

    def half(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    assert command.main([str(GOLDEN), "--out", str(tmp_path), "--only", "fig6"]) == 2
    assert "--out=" in (said := capsys.readouterr().err)
    assert "No space left" in said
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("fig6.png", "old")]


def test_without_records_the_papers_numbers_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    assert command.main([str(tmp_path), "--out", str(tmp_path / "out"), "--only", "fig3", "fig6", "equal_quality"]) == 0
    said = capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["fig3.csv", "fig3.pdf", "fig3.png"]
    assert "python -m harness.run -m method=mars confidence=" in said.split("not measured:")[1]


def test_models_take_turns_and_averages_come_first() -> None:
    sizes = {("a", "average"): 2, ("a", "bbh"): 3, ("a", "ifeval"): 4, ("b", "ifeval"): 5}
    panels = [(place, pd.DataFrame({"key": range(size)})) for place, size in sizes.items()]
    order = [place for place, _ in equal_quality._in_turns(panels)]
    assert order == [("b", "ifeval"), ("a", "average"), ("a", "ifeval"), ("a", "bbh")]
