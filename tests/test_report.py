"""The report: no record becomes markup, it stays small, a failed part does not lose it, a browser shows it."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shlex
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import browser
import numpy as np
import pandas as pd
import pytest
import synthetic_records as made

from harness import report
from harness.analysis import claims, grids
from harness.analysis.data import open_data
from harness.analysis.figures import base, style
from harness.analysis.published import read_published, with_errors
from harness.analysis.report import documents, make_page, markup, page, parts, records
from harness.results import stats

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    '<img src="https://127.0.0.1/x.png" onerror="window.hacked = 2">',
    "{{data}} \x00\x1b[31mred\x7f <!-- ]]> &amp; \u202e\u2028",
    "naïve 🐙🐙 ü\u0301 中文",
)
GATED = "base64:" + base64.b64encode(b"the secret question").decode()
NUM_DOCUMENTS = 24


def tokens_of(text: str, width: int) -> tuple[list[int], list[int]]:
    """Acceptance lengths and token ends of a text of one token a character, and EOS; every third forward idles."""
    ends = [*range(1, len(text) + 1), len(text)]
    lengths = [width] * (len(ends) // width) + ([len(ends) % width] if len(ends) % width else [])
    return [*lengths[:2], 0, *lengths[2:]], ends


def write(
    root: Path, method: str, axes: dict[str, Any], texts: list[str], scores: list[float], n: int, **asked: Any
) -> str:
    """A cell of word problems that answered these, asked as usual but for some; returns its run key."""
    of = made.identity(method, axes)
    of["suite"]["tasks"]["word_problems"] |= asked
    rows = made.documents(of, len(texts), made.QUICK, np.random.default_rng(0))
    for row, text, score in zip(rows, texts, scores, strict=True):
        lengths, ends = tokens_of(text, 1 if method == "ar_sft" else 3)
        row |= {"text": text, "acceptance_lengths": lengths, "token_ends": ends, "score": score}
        row |= {"new_tokens": len(ends), "target_forwards": len(lengths), "extracted": text[:5], "target": "<b>7</b>"}
        row["metrics"] = dict.fromkeys(row["metrics"], score)
    config = {"method": {"name": method}, "model": {"name": "tiny"}, "sandbox": "strict", **axes}
    config["suite"] = {"name": "quick", "limit": None, "tasks": ["word_problems"], "sandbox": "strict"}
    return made.write(root, of, rows, made.times(n), **config).name


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A results folder, and the run keys of an AR SFT and a MARS cell that part at some place of some documents."""
    root = tmp_path_factory.mktemp("two")
    first = [f"{HOSTILE[i % 4]} answer {i}" for i in range(NUM_DOCUMENTS - 1)] + [GATED]
    second = [text if i % 3 else text.replace("answer", "ant") for i, text in enumerate(first)]
    a = write(root, *made.AR, first, [float(i % 2) for i in range(NUM_DOCUMENTS)], 0)
    b = write(root, *made.METHODS[2], second, [float(i % 4 > 0) for i in range(NUM_DOCUMENTS)], 1)
    return root, a, b


def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that are made quickly, as hostile as they can be."""
    import harness.analysis.figures as figures
    import harness.analysis.papertables as papertables

    def draw(points: pd.DataFrame) -> Any:
        drawing, axes = style.new_figure()
        axes[0, 0].plot(points["x"], points["y"])
        return drawing

    def fail(_: pd.DataFrame) -> Any:
        raise RuntimeError("no <ink>")

    points = pd.DataFrame({"x": [1, 2], "y": [1, 2]})
    grid = grids.Grid("A <grid>", ("method", "score"), (("MARS", "1.0"), ("<i>EAGLE</i>", "")), 1)
    board = claims.judge(with_errors(read_published())).assign(source="published", family="<qwen>", how="unpaired")
    monkeypatch.setattr(claims, "board", lambda data: board, raising=False)
    monkeypatch.setattr(
        papertables, "make_tables", lambda data: [grids.Table("table2", "T<2>", "cap.", (grid,), points)], raising=False
    )
    monkeypatch.setattr(figures, "make_figures", lambda data: [
        base.Figure("fig1", "Drawn", "cap.", points, draw), base.Figure("fig2", "Broken", "cap.", points, fail),
        base.Figure("fig3", "Empty", "cap.", points[:0], draw, missing="run <this>"),
    ], raising=False)  # fmt: skip


def unpacked(html: str, name: str) -> Any:
    """What an element of the page has packed."""
    content = re.search(rf'<script type="application/octet-stream" id="{name}">([\w+/=]*)</script>', html)
    assert content
    return json.loads(gzip.decompress(base64.b64decode(content[1])))


# --- what becomes of a record's text


def test_text_is_escaped_and_halves_of_characters_do_not_break_the_file() -> None:
    assert markup.escape("<a href='\"&\x00\ud800\n") == "&lt;a href=&#x27;&quot;&amp;\ufffd?\n"
    packed = markup.packed({"text": "</script>\ud800"})
    assert re.fullmatch(r"[\w+/=]+", packed)
    assert json.loads(gzip.decompress(base64.b64decode(packed))) == {"text": "</script>\ud800"}
    assert markup.packed([1] * 99) == markup.packed([1] * 99), "the same page for the same records"
    found = markup.table(("m", "<s>"), [("<i>", "")], 1, "<c>")
    assert "<i>" not in found
    assert "<s>" not in found
    assert f'<td class="number empty">{grids.EMPTY}</td>' in found


def test_page_holds_every_text_once_and_none_of_a_gated_benchmark(
    two: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, a, b = two
    fakes(monkeypatch)
    html = make_page(open_data(root)).html
    assert "secret" not in html
    assert not re.search(r"<(?:script|img)[^>]*127\.0\.0\.1", html)
    assert html.count("<script>") == 1, "the page's own"
    block = unpacked(html, "documents-0")
    assert "base64" not in json.dumps(block)
    texts = [text for text in block["strings"] if isinstance(text, str)]
    assert len(texts) == len(set(texts))
    of = block["cells"][a]
    rows = open_data(root).results.documents
    expected = rows[rows["key"] == a].set_index("doc_id")
    for i, (_, doc_id) in enumerate(block["places"]):
        row, text = expected.loc[doc_id], block["strings"][of["text"][i]]
        if text == 1:
            assert row["text"] == GATED
            assert of["ends"][i] == of["lengths"][i] == -1, "nothing to shade"
            continue
        assert text == row["text"]
        ends = [*accumulate(map(int, block["strings"][of["ends"][i]].split(",")))]
        assert ends == list(row["token_ends"])
        lengths = [int(one) for one in block["strings"][of["lengths"][i]].split(",")]
        assert lengths == list(row["acceptance_lengths"])
        assert [of["tokens"][i], of["forwards"][i]] == [row["new_tokens"], row["target_forwards"]]
        assert float(of["score"][i]) == row["score"]
    same = np.array(of["text"]) == np.array(block["cells"][b]["text"])
    assert same.sum() == NUM_DOCUMENTS * 2 // 3


def test_documents_are_left_out_to_keep_the_limit(two: tuple[Path, str, str]) -> None:
    rows = open_data(two[0]).results.documents
    whole, kept = documents.pack(rows, 10**6)
    size = len(whole["word_problems"])
    assert kept is None
    assert documents.notice(kept) == ""
    half, kept = documents.pack(rows, int(0.8 * size))
    assert kept is not None
    assert 0 < kept < NUM_DOCUMENTS
    assert len(half["word_problems"]) <= int(0.8 * size)
    assert f"first {kept} documents" in documents.notice(kept)
    block = json.loads(gzip.decompress(base64.b64decode(half["word_problems"])))
    assert all(len(cell["text"]) == kept for cell in block["cells"].values())
    assert all(len(cell["score"]) == NUM_DOCUMENTS for cell in block["cells"].values()), "comparisons stay whole"
    assert documents.pack(rows, int(0.8 * size)) == (half, kept), "the same ones each time"
    assert documents.pack(rows, 10) == ({}, documents.NO_ROWS)
    assert documents.pack(rows.iloc[:0], 10) == ({}, None)


def test_texts_are_kept_of_each_task_before_the_second_of_any(tmp_path: Path) -> None:
    made.make(tmp_path, count=20)
    rows = open_data(tmp_path).results.documents
    block = json.loads(gzip.decompress(base64.b64decode(documents.pack(rows, 10**6)[0]["bbh"])))
    assert [doc for _, doc in block["places"]] == [0] * 9 + [1] * 9 + [2] * 2
    assert block["places"][:9] == [[i, 0] for i in range(9)]


# --- cells and their records


def test_a_cell_has_its_whole_record_and_the_command_that_runs_it_again(tmp_path: Path) -> None:
    paths = made.make(tmp_path)
    data = open_data(tmp_path)
    found = records.records(data)
    for path in paths:
        written = json.loads((path / "record.json").read_text())
        sections = found["records"][path.name]["sections"]
        for name in ("identity", "config", "protocol", "checkpoint", "provenance"):
            assert {k: found["values"][v] for k, v in sections.get(name, {}).items()} == (written[name] or {})
    (paths[0] / "record.json").unlink()
    assert "cannot be read any more" in records.records(data)["records"][paths[0].name]["error"]


@pytest.mark.parametrize("overrides", [
    ["method=mars", "tau=0.7", "cache=block", "cache_block=8", "accept_limit=cache_block", "batch_size=4", "seed=3"],
    ["method=mars", "verify=true", "suite=gsm8k", "suite.limit=50", "suite.max_gen_toks=99", "dtype=float64"],
    ["method=medusa", "method.tree=[[0],[1],[0,0]]", "method.acceptance=typical", "suite.tasks=[gsm8k_cot,ifeval]"],
    ["method=speculative", "method.target=mars", "method.draft=mars", "tau=0.9", "suite.limit=null"],
], ids=lambda overrides: overrides[-1])  # fmt: skip
def test_the_command_leads_to_the_same_cell(overrides: list[str]) -> None:
    from omegaconf import OmegaConf

    from harness import compose, grid

    def cell_of(line: list[str]) -> grid.Cell:
        [(cfg, _)], _ = compose.expand(line, multirun=False)
        return grid.make_cell(cfg)

    cell = cell_of(overrides)
    config: Any = OmegaConf.to_container(cell.cfg, resolve=True)
    command = records.command(config, cell.identity)
    assert command is not None
    again = cell_of(shlex.split(command)[3:])
    assert again.key == cell.key
    assert again.cfg.batch_size == cell.cfg.batch_size


def test_list_has_paired_differences_and_what_tells_cells_apart(two: tuple[Path, str, str]) -> None:
    root, a, b = two
    data = open_data(root)
    found = records.rows(data)
    rows = {row[0]: dict(zip(found["columns"], row, strict=True)) for row in found["rows"]}
    expected = data.pairs.difference(b, a, "word_problems")
    assert expected is not None
    interval = expected.difference
    assert rows[b]["delta"] == [interval.value, interval.low, interval.high, interval.n, a]
    assert rows[a]["delta"] is None
    assert rows[a]["others"] == ""


def test_settings_that_differ_within_a_method_are_told(tmp_path: Path) -> None:
    made.make_many(tmp_path, 9, 3)
    found = records.rows(open_data(tmp_path))
    told = {(row[1], row[found["columns"].index("others")]) for row in found["rows"]}
    assert ("ar_sft", "seed=0") in told
    assert ("ar_sft", "seed=1") in told
    assert ("jacobi", "") in told


# --- the page


def test_a_part_that_fails_does_not_lose_the_others(
    two: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes(monkeypatch)

    def broken(*_: Any) -> str:
        raise ValueError("</code><script>")

    monkeypatch.setattr(parts, "claims", broken)
    monkeypatch.setattr(records, "records", broken)
    made_page = make_page(open_data(two[0]))
    assert made_page.failed == ("claims", "figure fig2", "records")
    for words in ("ValueError: &lt;/code&gt;&lt;script&gt;", "no &lt;ink&gt;", "&lt;i&gt;EAGLE", "run &lt;this&gt;"):
        assert words in made_page.html
    assert made_page.html.count("data:image/svg+xml;base64,") == 1
    assert len(unpacked(made_page.html, "index")["cells"]["rows"]) == 2
    out = tmp_path / "there" / "report.html"
    assert report.main([str(two[0]), "--out", str(out)]) == 1
    assert out.read_text(encoding="utf-8") == make_page(open_data(two[0])).html, "the same bytes each time"
    assert "failed: claims, figure fig2, records" in capsys.readouterr().err


def test_the_command_line_says_what_is_wrong(
    two: tuple[Path, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(report, "make_page", lambda data: page.Page("", (), ""))
        assert report.main([str(two[0]), "--out", str(tmp_path / "file" / "report.html")]) == 2
    assert "--out=" in capsys.readouterr().err


# --- in a browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    """One browser for all tests; on a machine without one they are skipped, unless HARNESS_REQUIRE_BROWSER is set."""
    if browser.find() is None:
        if os.environ.get("HARNESS_REQUIRE_BROWSER"):
            pytest.fail(browser.MISSING)
        pytest.skip(browser.MISSING)
    one = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


def assert_quiet(chromium: browser.Browser, path: Path) -> None:
    """Nothing was logged, nothing failed, and nothing but the file was asked for."""
    assert chromium.troubles == []
    foreign = [url for url in chromium.requests if not url.startswith(("about:", "data:", path.as_uri()))]
    assert foreign == []
    assert chromium.run("window.hacked === undefined")


def test_a_browser_shows_cells_and_compares_two(
    two: tuple[Path, str, str], chromium: browser.Browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root, a, b = two
    fakes(monkeypatch)
    made.write(root, of := made.identity(*made.METHODS[4]), made.documents(of, 3, made.QUICK, np.random.default_rng(1)),
               made.times(9))  # fmt: skip
    data = open_data(root)
    original = records._record

    def with_half_a_character(path: str, keep: Any) -> dict[str, Any]:
        return original(path, keep) | {"created": "\ud800</script>"}

    monkeypatch.setattr(records, "_record", with_half_a_character)
    path = tmp_path / "report.html"
    path.write_text(make_page(data).html, encoding="utf-8")
    chromium.open(path)

    # the list: filter, sort, open a cell by its link and close it by a key
    assert chromium.texts("#cells-count") == ["3 of 3 rows"]
    chromium.click("#cells-text")
    chromium.type("mars tau=0.95")
    assert chromium.texts("#cells-count") == ["1 of 3 rows"]
    assert chromium.texts("#cells-table tbody th a") == [b[:8]]
    chromium.run("document.querySelector('#cells-text').select()")
    chromium.type(" ")
    chromium.select("#cells-method", "ar_sft")
    assert chromium.texts("#cells-table tbody th a") == [a[:8]]
    chromium.select("#cells-method", "")
    chromium.click("#cells-table thead th:nth-child(8) button")
    scores = [float(text.split()[0]) for text in chromium.texts("#cells-table tbody td:nth-child(8)")]
    assert len(scores) == 3
    assert scores == sorted(scores)
    chromium.click(f'a[href="#cell-{b}"]')
    chromium.wait("document.querySelector('#cell').open")
    [command] = chromium.texts("#cell-command")
    assert command == "python -m harness.run method=mars model=tiny suite=quick suite.limit=null tau=0.95 block_size=4"
    shown = chromium.run("document.querySelector('#cell').textContent")
    for words in (b, "909ca66d49a8621c", "2140804", "a processor", "\ufffd</script>"):
        assert words in shown
    chromium.press("Escape")
    chromium.wait("!document.querySelector('#cell').open")

    # two cells, chosen in the list
    chromium.click(f'tr:has(a[href="#cell-{a}"]) button[data-side="a"]')
    chromium.click(f'tr:has(a[href="#cell-{b}"]) button[data-side="b"]')
    chromium.wait("document.querySelector('#compare-finding') !== null")
    expected = data.pairs.difference(a, b, "word_problems")
    assert expected is not None
    [finding] = chromium.texts("#compare-finding")
    numbers = [float(one.replace("−", "-")) for one in re.findall(r"[+−]?\d+\.\d", finding)]
    interval = [100 * x for x in (expected.difference.value, expected.difference.low, expected.difference.high)]
    assert numbers == pytest.approx(interval, abs=0.051)
    [told] = chromium.texts("#compare-finding + p")
    assert f"on {NUM_DOCUMENTS} documents" in told.lower()
    assert f"higher) on {expected.wins}, B alone on {expected.losses}" in told
    assert f"p\u00a0=\u00a0{expected.p_value:.3f}" in told
    assert f"same on {NUM_DOCUMENTS * 2 // 3} of {NUM_DOCUMENTS}" in told

    # documents that differ: the texts, what was committed together, and where they part
    chromium.select("#compare-filter", "differ")
    assert chromium.texts("#compare-place") == [f"1 of {NUM_DOCUMENTS // 3}"]
    chromium.run(
        "window.textBefore = (side) => { let text = ''; "
        "for (const one of document.querySelector(`[data-side='${side}'] .answer`).childNodes) "
        "{ if (one.className === 'divergence') return text; text += one.textContent; } }"
    )
    rows = data.results.documents.set_index(["key", "doc_id"])
    for i in range(0, NUM_DOCUMENTS, 3):
        texts = [str(rows.loc[(key, i), "text"]) for key in (a, b)]
        at = next(j for j, (x, y) in enumerate(zip(*texts, strict=False)) if x != y)
        for side, text, key in (("A", texts[0], a), ("B", texts[1], b)):
            shaded = chromium.texts(f'[data-side="{side}"] .answer .step:not(.end)')
            assert "".join(shaded) == printable(text)
            steps = [text[x:y] for x, y in spans(rows.loc[(key, i)])]
            cut = [x for step in cut_at(steps, at) for x in step if x]
            assert shaded == [printable(x) for x in cut]
            before = chromium.run(f"textBefore({json.dumps(side)})")
            assert before == printable(text[:at])
        assert chromium.texts("#compare-target code") == ["<b>7</b>"]
        if i + 3 < NUM_DOCUMENTS:
            chromium.click("#compare-next" if i % 2 else "#compare-sides")
            if i % 2 == 0:
                chromium.run("document.querySelector('#compare-next').focus()")
                chromium.press("ArrowRight")
    assert chromium.run("document.querySelector('#compare-next').disabled")
    chromium.select("#compare-filter", "same")
    chromium.select("#compare-document", str(NUM_DOCUMENTS * 2 // 3 - 1))
    assert chromium.texts(".answer") == ["hidden (gated benchmark)"] * 2
    for width in (1280, 390):
        chromium.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=False)
        assert chromium.run("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    assert_quiet(chromium, path)


def spans(row: pd.Series) -> list[tuple[int, int]]:
    """Where the text of each forward begins and ends."""
    ends = [0, *row["token_ends"]]
    places = [0, *accumulate(row["acceptance_lengths"])]
    return [(ends[x], ends[y]) for x, y in pairwise(places)]


def cut_at(steps: list[str], place: int) -> Iterator[tuple[str, ...]]:
    """The steps, the one that holds a place cut in two there."""
    start = 0
    for step in steps:
        inside = place - start
        yield (step[:inside], step[inside:]) if 0 < inside < len(step) else (step,)
        start += len(step)


def printable(text: str) -> str:
    """As the page shows control characters."""
    text = re.sub(r"[\x00-\x08\x0b-\x1f]", lambda m: chr(0x2400 + ord(m[0])), text).replace("\x7f", "\u2421")
    return text.replace("\u202e", "⟨202E⟩").replace("\u2028", "⟨2028⟩")


def test_a_browser_shows_part_of_a_very_long_answer_and_what_was_asked_differently(
    chromium: browser.Browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fakes(monkeypatch)
    long = "x" * 300_000
    a = write(tmp_path, *made.AR, [long + "y" + long, "one", "two"], [1.0] * 3, 0)
    other = {"num_fewshot": 5, "data": {"word_problems": "other"}}
    b = write(tmp_path, *made.METHODS[2], [long + "z", "one"], [0.0, 1.0], 1, **other)
    odd = {"loss": float("nan"), "bound": float("inf")}
    made.edit(tmp_path / "runs" / b, lambda found: found["provenance"].update(odd))
    path = tmp_path / "report.html"
    made_page = make_page(open_data(tmp_path))
    path.write_text(made_page.html, encoding="utf-8")
    assert "records" not in made_page.failed, "JSON in a browser has no NaN, and a record may"
    chromium.open(path)
    chromium.click(f'tr:has(a[href="#cell-{a}"]) button[data-side="a"]')
    chromium.click(f'tr:has(a[href="#cell-{b}"]) button[data-side="b"]')
    chromium.wait("document.querySelectorAll('.answer').length === 2")
    asked, fewer = chromium.texts("#compare-summary .notice")
    assert "documents; number of examples in the prompt (A 0, B 5)" in asked
    assert fewer == "A has 3 documents and B 2; compared are those of both."
    for text, letter in zip(chromium.texts(".answer"), "yz", strict=True):
        assert f"x◆{letter}" in text
        assert len(text) < 21_000
        assert text.startswith("295,000 characters before are not shown")
    chromium.run(f"location.hash = '#cell-{b}'")
    chromium.wait("document.querySelector('#cell').open")
    assert '"bound": "Infinity"' in chromium.run("document.querySelector('#cell').textContent")
    for place in ("#%E0%", "#cell-__proto__"):
        chromium.run(f"location.hash = '{place}'")
        chromium.wait("!document.querySelector('#cell').open")
    assert chromium.run("[signed(-0.04, 1), signed(0.04, 1), signed(-0.06, 1)]") == ["0.0", "0.0", "−0.1"]
    assert_quiet(chromium, path)


@pytest.mark.parametrize("count", [0, 1])
def test_a_browser_shows_a_page_of_few_cells(
    count: int, chromium: browser.Browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fakes(monkeypatch)
    (tmp_path / "runs").mkdir()
    if count:
        write(tmp_path, *made.AR, ["one"], [1.0], 0)
    path = tmp_path / "report.html"
    path.write_text(make_page(open_data(tmp_path, quiet=True)).html, encoding="utf-8")
    chromium.open(path)
    assert chromium.texts("#cells-count") == [f"{count} of {count} rows"]
    assert chromium.texts("#compare-summary p")[0].startswith("Choose two" if count else "There are no documents")
    assert_quiet(chromium, path)


def test_the_browser_notices_trouble(chromium: browser.Browser, tmp_path: Path) -> None:
    """The check that a page is quiet can fail."""
    path = tmp_path / "loud.html"
    path.write_text(
        "<script>document.documentElement.dataset.ready = 'true'; setTimeout(() => console.error('loud'));"
        "fetch('http://127.0.0.1:9/x').catch(() => { window.failed = true; });</script>"
    )
    before = len(chromium.troubles)
    chromium.call("Page.navigate", url=path.as_uri())
    while not chromium.run("window.failed === true"):
        pass
    found = chromium.troubles[before:]
    assert any("loud" in trouble for trouble in found)
    assert any("failed request" in trouble for trouble in found)
    assert "http://127.0.0.1:9/x" in chromium.requests


def test_the_page_counts_as_the_tables_do(
    chromium: browser.Browser, two: tuple[Path, str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The paired difference that the page draws is that of ``stats.compare``, clustered or not, binary or not."""
    fakes(monkeypatch)
    path = tmp_path / "report.html"
    path.write_text(make_page(open_data(two[0])).html, encoding="utf-8")
    chromium.open(path)
    generator = np.random.default_rng(0)
    for num_tasks, values in ((1, (0.0, 1.0)), (12, (0.0, 1.0)), (1, (0.0, 0.3, 1.0)), (1, (1.0,))):
        sides = [
            [{"task": f"t{i % num_tasks}", "doc_id": i, "score": float(generator.choice(values))} for i in range(300)]
            for _ in range(2)
        ]
        expected = stats.compare(*sides)
        assert expected is not None
        pairs = [{"a": x["score"], "b": y["score"], "task": x["task"]} for x, y in zip(*sides, strict=True)]
        found = chromium.run(f"pairedDifference({json.dumps(pairs)})")
        assert found["value"] == pytest.approx(expected.difference.value)
        assert found["low"] == pytest.approx(expected.difference.low, abs=0.006)
        assert found["high"] == pytest.approx(expected.difference.high, abs=0.006)
        assert (found["wins"], found["losses"]) == (expected.wins, expected.losses)
        assert found["how"] == expected.difference.how
        assert found["p"] == (None if expected.p_value is None else pytest.approx(expected.p_value))
    assert_quiet(chromium, path)
