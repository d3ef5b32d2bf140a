"""Files of a run's past policies: the weights, and in the header the step and the network's settings and spaces.

`<run_dir>/pool/step_<12 digits>.safetensors`, with a checksum in the header. Files are written under another name and renamed,
so a file of this name is whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch

from enn_ppo.checkpoints import check_finite
from enn_ppo.checkpoints.manifest import checksum_of
from enn_ppo.checkpoints.policy import load_weights
from enn_ppo.settings.schema import from_dict, to_dict
from enn_ppo.training.files import make_folder, replace_file
from enn_ppo.training.tracking.run_dir import POOL
from entity_gym.batch.saving import spaces_from_dict, spaces_to_dict
from entity_gym.untrusted import parse_json, read_regular
from rogue_net import RogueNet, RogueNetConfig

_MOST_BYTES = 2**34
_NAME = re.compile(r"step_(\d{12,})\.safetensors")


def snapshot_path(run_dir: Path, step: int) -> Path:
    """Path of a step's snapshot."""
    return run_dir / POOL / f"step_{step:012d}.safetensors"


def snapshots_of(run_dir: Path) -> list[int]:
    """The steps of a run's snapshots, ascending."""
    names = os.listdir(run_dir / POOL) if (run_dir / POOL).is_dir() else []
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def write_snapshot(run_dir: Path, step: int, net: RogueNet) -> None:
    """Write the weights of `net`, replacing an existing snapshot of this step.

    Raises:
        ValueError: the file cannot be written; an existing snapshot is unchanged.
    """
    path = snapshot_path(run_dir, step)
    header: dict[str, str] = {
        "step": str(step),
        "net": json.dumps(to_dict(net.config)),
        "spaces": json.dumps(spaces_to_dict(net.obs_space, net.action_space)),
    }
    weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in net.state_dict().items()}
    header["checksum"] = _checksum(header, weights)
    try:
        make_folder(path.parent)
        replace_file(path, safetensors.torch.save(weights, header))
    except OSError as error:
        raise ValueError(f"snapshot {path} cannot be written: {error.strerror or error}") from error


def read_snapshot(path: Path, device: torch.device) -> RogueNet:
    """Load the policy of a snapshot.

    Raises:
        ValueError: the file is missing or damaged, or is the snapshot of another step than its name says.
    """
    try:
        data = read_regular(path, _MOST_BYTES)
        weights = safetensors.torch.load(data)
        header = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        if header.get("checksum") != _checksum(header, weights):
            raise ValueError("its checksum does not fit its content")
        if snapshot_path(Path(), int(header["step"])).name != path.name:
            raise ValueError(f"it is the snapshot of step {header['step']}")
        check_finite(weights, "policy")
        config = from_dict(RogueNetConfig, parse_json(header["net"]), "net")
        with torch.random.fork_rng(devices=[]):  # initial weights are replaced; the global generator stays as it is
            net = RogueNet(config, *spaces_from_dict(parse_json(header["spaces"])))
        load_weights(net, weights)
    except FileNotFoundError:
        raise ValueError(f"there is no snapshot {path}") from None
    except Exception as error:  # a damaged file can raise any exception
        raise ValueError(f"snapshot {path} is damaged: {error}") from error
    return net.to(device)


def _checksum(header: Mapping[str, str], weights: Mapping[str, torch.Tensor]) -> str:
    """Checksum of the content: other versions of safetensors may write the same content in another form."""
    named = [(name, str(weights[name].dtype), list(weights[name].shape)) for name in sorted(weights)]
    data = [json.dumps([header["step"], header["net"], header["spaces"], named]).encode()]
    data += [weights[name].reshape(-1).view(torch.uint8).numpy().tobytes() for name in sorted(weights)]
    return checksum_of(b"".join(data))
