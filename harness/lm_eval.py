"""lm-eval's own command line, with this project's decoding as one more model.

    python -m harness.lm_eval run --model harness --model_args method=mars,model=tiny,tau=0.95,block_size=4 \\
        --tasks gsm8k_cot --apply_chat_template --output_path out

Everything is lm-eval's: tasks, flags, other models, subcommands. --model harness takes in --model_args the keys of
``python -m harness.run`` (method, model, tau, block_size, checkpoint, cache, dtype, seed, …, also dotted ones such as
method.target=ar_sft or model.path=DIR); batch size and device are lm-eval's flags. Log-likelihood requests are answered
by the same weights as a plain causal LM. Answers are as long as the task says: the paper's limit is
--gen_kwargs max_gen_toks=256. After lm-eval's tables stand, per task, tokens per forward (a ratio of sums), mean length
and the share of answers cut at the limit; with --output_path they are in lm-eval's results under config.harness, and a
line per document lies beside them (with its answer where --log_samples is given).
"""

from __future__ import annotations

import sys

from harness.errors import UserError


def main() -> int:
    """Run ``sys.argv``; returns the exit status, 2 for a mistake in the model's settings."""
    from harness.evaluation.command import run

    try:
        run(str(__doc__))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
