"""How methods, models, benchmarks and variants are called where readers see them; others stand for themselves."""

from __future__ import annotations

METHODS = {
    "ar_sft": "AR SFT", "block_diffusion": "Block Diffusion", "mars": "MARS", "mars verified": "MARS verified",
    "jacobi": "Jacobi", "medusa": "Medusa", "eagle": "EAGLE", "speculative": "Speculative",
}  # fmt: skip
MODELS = {"0.5b": "Qwen2.5-0.5B", "7b": "Qwen2.5-7B"}  # the paper's scales
BENCHMARKS = {
    "ifeval": "IFEval", "bbh": "BBH", "mmlu_pro": "MMLU-Pro", "gpqa_main_cot_zeroshot": "GPQA", "gsm8k_cot": "GSM8K",
    "humaneval_instruct": "HumanEval", "word_problems": "word problems",
}  # fmt: skip
VARIANTS = {"no_sft_loss": "without SFT loss", "base": "not fine-tuned", "compute_matched": "compute-matched"}


def name(known: dict[str, str], word: str) -> str:
    """The readers' word for it."""
    return known.get(word, word.replace("_", " "))
