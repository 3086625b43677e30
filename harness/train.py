"""``python -m harness.train method=mars model=tiny …``: make the checkpoint that a method needs (conf/train.yaml)."""

from __future__ import annotations

import logging
import sys

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from harness.config import CONF, ROOT
from harness.errors import UserError
from harness.training.compose import compose, open_objective, register
from harness.training.recipe import train_checkpoint

failures: list[str] = []


@hydra.main(config_path=str(CONF), config_name="train", version_base="1.3")
def job(cfg: DictConfig) -> None:
    """One training; a mistake is told and remembered, so that a sweep goes on with the next."""
    overrides = list(HydraConfig.get().overrides.task)
    try:
        directory = train_checkpoint(cfg, overrides)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        failures.append(str(error))
        return
    shown = directory.relative_to(ROOT) if directory.is_relative_to(ROOT) else directory
    print(f"checkpoint: {shown}")


def main() -> int:
    """Check the command line, then let Hydra run it; exit status 1 is a failed training, 2 a mistake before any."""
    register()
    logging.captureWarnings(True)  # libraries' deprecation notices are not the user's business
    logging.getLogger("py.warnings").setLevel(logging.ERROR)
    sys.argv[1:] = open_objective(sys.argv[1:])
    args = get_args_parser().parse_args()
    if not (args.help or args.hydra_help or args.info or args.shell_completion or args.config_dir):
        try:
            compose(args.overrides, sweep=args.multirun)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    job()
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
