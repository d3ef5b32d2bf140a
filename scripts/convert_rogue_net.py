"""Converts weights of rogue-net 0.1.9, this project's ancestor, into weights of `rogue_net.RogueNet`.

python scripts/convert_rogue_net.py weights.pt description.yaml converted.safetensors

For bare weights; `python -m enn_ppo.convert` takes a whole checkpoint of enn-trainer.

The weights are a `state_dict`, saved with torch or as safetensors. The description is JSON or YAML and holds the network's
constructor arguments with rogue-net's names; entity types, actions and features must be in their original order:

    net: {d_model: 32, n_layer: 2, relpos_encoding: {extent: [10, 10], position_features: [x, y]}}   # RogueNetConfig
    obs_space: {entities: {Robot: [x, y], Mine: [x, y]}, global_features: []}
    action_space:
      move: {kind: categorical, choices: [left, right]}    # or global_categorical
      fire: {kind: select_entity}
    regression_heads: {value: 1}                           # `value` is required

Prints the settings that the converted network needs; docs/migrating.md has an example. `rogue_net/transfer/conversion.py`
says in what the networks differ.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rogue_net import RogueNetConfig
from rogue_net.config import RelposConfig, TranslationConfig
from rogue_net.transfer.conversion import convert, read_description


def load_weights(path: Path) -> dict[str, Tensor]:
    """Load a state_dict from a safetensors or torch file; only tensors are loaded."""
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, UnpicklingError, EOFError, RuntimeError) as error:
        raise ValueError(
            f"{path} is neither safetensors, by name and content, nor a torch file of tensors alone"
        ) from error
    if not isinstance(loaded, Mapping) or not all(isinstance(tensor, Tensor) for tensor in loaded.values()):
        raise ValueError(f"{path} does not hold a state_dict, a mapping of names to tensors")
    return dict(loaded)


def settings_of(config: RogueNetConfig) -> dict[str, Any]:
    """The settings that differ from their defaults, in the form of a configuration file."""

    def changed(given: Any, default: Any) -> dict[str, Any]:
        differing = {}
        for name, value in vars(given).items():
            if value != getattr(default, name):
                section = isinstance(value, RelposConfig | TranslationConfig)
                differing[name] = changed(value, getattr(default, name)) if section else value
        return differing

    settings: dict[str, Any] = json.loads(json.dumps(changed(config, RogueNetConfig())))  # tuples become lists
    return settings


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("weights", type=Path, help="rogue-net's state_dict: a .safetensors file, or one of torch")
    arguments.add_argument("description", type=Path, help="JSON or YAML")
    arguments.add_argument("converted", type=Path, help="the .safetensors file to write")
    given = arguments.parse_args()
    try:
        description = read_description(yaml.safe_load(given.description.read_text()))
        converted = convert(load_weights(given.weights), description)
        save_file(converted, given.converted)
    except (ValueError, OSError, SafetensorError, yaml.YAMLError) as error:
        arguments.exit(1, f"error: {error}\n")
    print(yaml.safe_dump({"net": settings_of(description.config)}, sort_keys=False), end="")


if __name__ == "__main__":
    main()
