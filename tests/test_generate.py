"""The Python API and the shaded generation, on random models of a few thousand parameters."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import micro
import pytest
import torch
from rich.console import Console

from harness import decode, generate
from harness.engine.rows import Completion, Step
from harness.engine.stats import SequenceStats
from harness.errors import UserError
from harness.models import load
from harness.models.chat import encode_chat, encode_plain
from methods.ar_sft import ArSft
from methods.mars import Mars


@pytest.fixture
def model(tmp_path: Path) -> dict[str, Any]:
    load._kept.clear()
    net = micro.model(tied=False)
    with torch.no_grad():
        net.lm_head.weight.mul_(12)  # confident enough that forwards of several tokens occur
        net.lm_head.weight[micro.VOCABULARY :] = 0  # and no padding row is ever the answer
    return {"name": "mine", "source": "local", "path": str(micro.save(tmp_path / "m", net)), "dtype": "float64"}


def reference(loaded: load.LoadedModel, prompt: list[int], count: int) -> list[int]:
    """Greedy AR by full recomputation."""
    tokens: list[int] = []
    while len(tokens) < count and not (tokens and tokens[-1] in loaded.eos_token_ids):
        tokens.append(int(micro.logits(loaded.model, prompt + tokens)[-1].argmax()))
    return tokens


# decode()


def test_decode_gives_greedy_text_and_statistics_in_order_of_prompts(model: dict[str, Any]) -> None:
    loaded = load.load(model, method=Mars, variant="base")
    prompts = ["Hi", "A longer question?", "x"]
    answers = decode(model, "ar_sft", prompts, variant="base", max_new_tokens=20, batch_size=2)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = encode_chat(loaded.tokenizer, [{"role": "user", "content": prompt}])
        assert answer.prompt_ids == ids
        assert answer.token_ids == reference(loaded, ids, 20)
        assert answer.stats.tokens_per_forward == 1.0
    one_token = decode(loaded, "mars", prompts, tau=1.0, max_new_tokens=20)
    assert [a.token_ids for a in one_token] == [a.token_ids for a in answers]
    many = decode(loaded, Mars(tau=0.3), prompts, max_new_tokens=20, cache="none")
    assert sum(a.stats.new_tokens for a in many) > sum(a.stats.target_forwards for a in many)
    assert [a.token_ids for a in many] == [sum((s.token_ids for s in a.trace), []) for a in many]


def test_a_prompt_is_a_message_a_conversation_or_ids(model: dict[str, Any]) -> None:
    loaded = load.load(model, method=ArSft, variant="base")
    chat = [{"role": "user", "content": "Hi"}]
    ids = encode_chat(loaded.tokenizer, chat)
    for prompt in ("Hi", chat, ids, ["Hi"], [chat], [ids]):
        [answer] = decode(loaded, "ar_sft", prompt, max_new_tokens=1)
        assert answer.prompt_ids == ids
    [plain] = decode(loaded, "ar_sft", "Hi", max_new_tokens=1, chat=False)
    assert plain.prompt_ids == encode_plain(loaded.tokenizer, "Hi")
    assert decode(loaded, "ar_sft", []) == []


def test_what_is_no_prompt_is_refused(model: dict[str, Any]) -> None:
    loaded = load.load(model, method=ArSft, variant="base")
    tokenizer = loaded.tokenizer
    encoded = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    for prompt in (encoded, {"role": "user", "content": "Hi"}, torch.tensor([1, 2]), [torch.tensor([1])], [1, "a"], 5):
        with pytest.raises(UserError, match="a list of token ids"):
            decode(loaded, "ar_sft", prompt)  # type: ignore[arg-type]
    for turns in ([{"role": "user"}], [{"content": "Hi"}], [{"role": "user", "content": None}]):
        with pytest.raises(UserError, match="a role and a content"):
            decode(loaded, "ar_sft", turns)
    with pytest.raises(UserError, match="no valid Unicode"):
        decode(loaded, "ar_sft", "caf\udce9")
    tokenizer.chat_template = "{{ raise_exception('no system turn') }}"
    with pytest.raises(UserError, match="no system turn"):
        decode(loaded, "ar_sft", "Hi")


def test_decode_refuses_what_does_not_exist_or_fit(model: dict[str, Any]) -> None:
    loaded = load.load(model, method=ArSft, variant="base")
    with pytest.raises(UserError, match="fix: method=mars"):
        decode(loaded, "mras", "Hi")
    with pytest.raises(UserError, match="mars has the options tau, block_size, confidence"):
        decode(loaded, "mars", "Hi", taus=0.9)
    with pytest.raises(UserError, match="options go with a method's name"):
        decode(loaded, Mars(), "Hi", tau=0.9)
    with pytest.raises(UserError, match="the model is loaded"):
        decode(loaded, "ar_sft", "Hi", variant="base")
    with pytest.raises(UserError, match="context of 512"):
        decode(loaded, "ar_sft", "long " * 200)
    with pytest.raises(UserError, match="python -m harness.train method=mars"):
        decode(model, "mars", "Hi")


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import harness, harness.config, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


def test_decode_stays_the_function_when_its_module_is_imported() -> None:
    import harness
    import harness.decoding

    assert harness.decode is harness.decoding.decode


# Command line


@pytest.mark.parametrize(
    ("line", "prompt", "overrides", "limit"),
    [
        (["What is 2 + 2?", "method=mars", "tau=0.9"], "What is 2 + 2?", ["method=mars", "tau=0.9"], "256"),
        (["max_new_tokens=7", "two", "words"], "two words", [], "7"),
        (["2 + x = 5, what is x?", "+model.revision=abc"], "2 + x = 5, what is x?", ["+model.revision=abc"], "256"),
        (["tau=1", "--", "x=5", "y=6"], "x=5 y=6", ["tau=1"], "256"),
        (["--help"], None, [], None),
    ],
)
def test_prompt_and_settings_are_told_apart(line: Any, prompt: Any, overrides: Any, limit: Any) -> None:
    found, own, rest = generate.parse(line)
    assert (found, rest, own.get("max_new_tokens")) == (prompt, overrides, limit)


def test_the_prompt_may_come_through_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("piped in\n"))
    assert generate.parse(["tau=0.9"])[0] == "piped in"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (["Hi", "tua=0.9"], "tau"),
        (["x=3, what is x?"], "after --"),
        ([""], "a text to continue"),
        (["Hi", "method=mras"], "method=mars"),
        (["Hi", "max_new_tokens=many"], "a whole number"),
        (["Hi", "chat=perhaps"], "true or false"),
        (
            ["Hi", "model=smollm2-135m", "block_size=3"],
            "python -m harness.train method=mars model=smollm2-135m block_size=3",
        ),
    ],
)
def test_a_mistake_is_one_message_and_a_status(
    line: list[str], complaint: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert generate.main(line) == 2
    told = capsys.readouterr()
    assert complaint in told.err
    assert not told.out
    assert "Traceback" not in told.err


def test_help_explains_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["-h"]) == 0
    assert "python -m harness.generate" in capsys.readouterr().out


def test_one_generation_end_to_end(model: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["model=local", f"model.path={model['path']}", "dtype=float64", "variant=base", "max_new_tokens=12"]
    assert generate.main(["Hi", "method=mars", "tau=0.3", f"svg={tmp_path / 'picture.svg'}", *line]) == 0
    printed = capsys.readouterr().out
    assert "mars (tau=0.3, B=4), m" in printed
    assert "12 tokens in" in printed
    picture = (tmp_path / "picture.svg").read_text()
    assert picture.startswith("<svg")
    shades = {shade for _, _, pair in generate.HUES for shade in pair}
    assert any(shade in picture for shade in shades), "shaded also when the output is piped"
    assert generate.main(["Hi", "method=ar_sft", *line]) == 0
    assert "1.00 tokens per forward" in capsys.readouterr().out


# The picture


def completion(*steps: list[int]) -> Completion:
    ids = [i for step in steps for i in step]
    stats = SequenceStats(new_tokens=len(ids), target_forwards=len(steps), positions=9, finish_reason="eos")
    return Completion(0, [1], ids, "", stats, [Step(step, []) for step in steps])


def test_a_character_split_between_forwards_is_drawn_once() -> None:
    tokenizer = micro.tokenizer()
    ids = tokenizer("né!é", add_special_tokens=False)["input_ids"]
    assert len(ids) == 6
    found = generate.step_texts(completion(ids[:2], ids[2:4], ids[4:5], ids[5:]), tokenizer.decode)
    assert found == ["n", "é!", "", "é"]


def test_shades_follow_forwards_and_tell_their_length() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=60, record=True)
    generate.show(console, "title", completion([1], [2, 3], [4, 5], []), ["a", "bc", "de", ""])
    html = console.export_html(inline_styles=True)
    grey, blue = (generate._hue(n)[2] for n in (1, 2))
    for shade, piece in ((grey[0], "a"), (blue[1], "bc"), (blue[0], "de")):
        assert f'background-color: {shade}">{piece}</span>' in html, "neighbours of one length differ in tint"


def test_without_colour_bars_tell_the_forwards() -> None:
    out = io.StringIO()
    generate.show(Console(file=out, width=60), "title", completion([1], [2, 3], [], [4, 5, 6]), ["a", "b\n", "", "cde"])
    text, _, legend = out.getvalue().partition("\n\n")
    assert text == "a│b│\ncde"
    assert legend.splitlines()[1:3] == [
        "6 tokens in 4 forwards and 0.00 s, ended by eos",
        "1.50 tokens per forward, 1.50 positions per token",
    ]
    assert [line.split() for line in legend.splitlines()[4:]] == [
        ["none", "in", "1", "forward"],
        ["1", "token", "in", "1", "forward"],
        ["2", "tokens", "in", "1", "forward"],
        ["3", "tokens", "in", "1", "forward"],
    ]


# Real weights


@pytest.mark.slow
def test_ar_on_smollm2_equals_transformers_own_greedy_decoding() -> None:
    try:
        loaded = load.load("smollm2-135m", method=ArSft, variant="base", dtype="float32")
    except UserError as error:
        pytest.skip(str(error))
    prompts = ["What is the capital of France?", "Tom has 3 bags of 12 apples and eats 5. How many are left?"]
    for answer in decode(loaded, "ar_sft", prompts, max_new_tokens=40, batch_size=2):
        ids = torch.tensor([answer.prompt_ids])
        expected = loaded.model.generate(ids, max_new_tokens=40, do_sample=False)[0, ids.shape[1] :]  # type: ignore[operator]
        assert answer.token_ids == expected.tolist()
