"""What a checkpoint promises: everything comes back exactly, and no crash takes away what was there."""

import enum
import json
import os
import resource
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from enn_ppo.checkpoints import (
    CheckpointError,
    Retention,
    load_checkpoint,
    resolve_checkpoint,
    save_checkpoint,
)
from enn_ppo.checkpoints.stored_values import decode, encode

ONE = Retention(keep_last=1)
TWO = "step_000000000200"


def save(directory: Path, step: int, *, keep: int = 3, trainer: Any = None, mark: float = 0.0) -> Path:
    return save_checkpoint(
        directory,
        step,
        policy={"head.weight": torch.full((2, 3), mark)},
        config={"seed": 1, "optim": {"lr": 1e-05}},
        spaces={"entities": {"Mine": ["x", "y"]}},
        trainer={"step": step} if trainer is None else trainer,
        retention=Retention(keep_last=keep),
    )


def round_trip(directory: Path, value: Any) -> Any:
    return load_checkpoint(save(directory, 0, trainer={"value": value})).trainer["value"]


def mark_of(path: Path) -> float:
    return float(load_checkpoint(path).policy["head.weight"][0, 0])


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


# --- Values come back ---


def test_all_parts_come_back(tmp_path: Path) -> None:
    file = save(tmp_path, 12800, mark=2.5)
    assert file == tmp_path / "step_000000012800.safetensors"
    loaded = load_checkpoint(file)
    assert (loaded.path, loaded.step) == (file, 12800)
    assert loaded.policy["head.weight"].equal(torch.full((2, 3), 2.5))
    assert loaded.config == {"seed": 1, "optim": {"lr": 1e-05}}
    assert loaded.spaces == {"entities": {"Mine": ["x", "y"]}}
    assert loaded.trainer == {"step": 12800}


def test_the_order_of_keys_is_kept(tmp_path: Path) -> None:
    plain = {"zebra": 1, "ant": 2}
    save_checkpoint(tmp_path, 0, policy={}, config=plain, spaces=plain, trainer=plain, retention=ONE)
    loaded = load_checkpoint(tmp_path)
    assert [list(part) for part in (loaded.config, loaded.spaces, loaded.trainer)] == [["zebra", "ant"]] * 3


def test_tied_weights_are_saved_under_both_names(tmp_path: Path) -> None:
    weight = torch.arange(4.0)
    save_checkpoint(tmp_path, 0, policy={"a": weight, "b": weight}, config={}, spaces={}, trainer={}, retention=ONE)
    assert load_checkpoint(tmp_path).policy["b"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_plain_values_keep_their_types(tmp_path: Path) -> None:
    value = {1: (1, [2.5, None, True, "ü"], ()), "empty": {}, None: b"\x00\xff", "nested": [({"a": (1,)},)]}
    value["large"] = [1 << 1999, -(1 << 128), float("inf"), float("-inf")]
    result = round_trip(tmp_path, value)
    assert result == value
    assert type(result[1]) is tuple and type(result[1][1][2]) is bool and type(result["nested"][0]) is tuple


def test_random_generators_continue_where_they_were(tmp_path: Path) -> None:
    generator, mersenne = np.random.default_rng(5), np.random.Generator(np.random.MT19937(5))
    torch_generator = torch.Generator().manual_seed(5)
    generator.integers(10, dtype=np.int32)  # leaves half a word in the bit generator
    saved = round_trip(
        tmp_path, [generator.bit_generator.state, mersenne.bit_generator.state, torch_generator.get_state()]
    )
    restored, restored_mersenne = np.random.default_rng(0), np.random.Generator(np.random.MT19937(0))
    restored.bit_generator.state, restored_mersenne.bit_generator.state = saved[0], saved[1]
    assert restored.integers(1 << 30, size=5, dtype=np.int32).tolist() == (
        generator.integers(1 << 30, size=5, dtype=np.int32).tolist()
    )
    assert restored_mersenne.random(5).tolist() == mersenne.random(5).tolist()
    assert torch.rand(5, generator=torch.Generator().set_state(saved[2])).equal(
        torch.rand(5, generator=torch_generator)
    )


def test_an_optimizer_continues_where_it_was(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    parameter.grad = torch.ones(3)
    optimizer.step()
    saved = round_trip(tmp_path, optimizer.state_dict())
    assert saved["param_groups"] == optimizer.state_dict()["param_groups"]
    assert saved["state"][0]["exp_avg"].equal(optimizer.state_dict()["state"][0]["exp_avg"])


DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(),
    hnp.datetime64_dtypes(),
    hnp.unicode_string_dtypes(max_len=3),
    hnp.array_dtypes(allow_subarrays=True),
)


@settings(max_examples=60)
@given(hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)), st.booleans())
def test_every_array_comes_back_bit_for_bit(array: np.ndarray[Any, Any], transposed: bool) -> None:
    array = array.T if transposed else array
    tensors: list[torch.Tensor] = []
    stored = json.loads(json.dumps(encode({"a": array}, "trainer", tensors)))
    result = decode(stored, dict(enumerate(tensors)))["a"]
    assert type(result) is np.ndarray
    assert (result.dtype, result.shape, result.flags.fnc) == (array.dtype, array.shape, array.flags.fnc)
    assert result.tobytes() == array.tobytes()
    assert result.flags.writeable and result.flags.owndata


@pytest.mark.parametrize(
    "scalar", [np.float32(0.1), np.float64(0.1), np.uint64(2**64 - 1), np.bool_(True), np.int8(-3), np.str_("ab")]
)
def test_a_numpy_scalar_comes_back_as_one(tmp_path: Path, scalar: np.generic) -> None:
    result = round_trip(tmp_path, scalar)
    assert type(result) is type(scalar) and result == scalar


class Pair(NamedTuple):
    x: int
    y: int


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"envs": [1, {"board": np.array([None])}]},
            r"trainer\['envs'\]\[1\]\['board'\] is a NumPy array of dtype obj",
        ),
        (
            {"a": [{1, 2}]},
            r"trainer\['a'\]\[0\] is builtins.set: what can be stored are dicts, lists and tuples of str",
        ),
        ({"a": Colour.RED}, r"trainer\['a'\] is .*Colour: what can be stored"),
        ({"a": Pair(1, 2)}, r"trainer\['a'\] is .*Pair: what can be stored"),
        ({"a": np.ma.masked_array([1], [True])}, r"trainer\['a'\] is numpy.*MaskedArray: what can be stored"),
        ({"a": {(1, 2): 3}}, r"trainer\['a'\] has the key \(1, 2\): a key must be str, int"),
        ({"a": torch.eye(2).to_sparse()}, r"trainer\['a'\] is torch.Tensor: what can be stored .* dense tensors"),
        ({"a": 1 << 2000}, r"trainer\['a'\] is builtins.int: what can be stored .*int of at most 2000 bits"),
    ],
)
def test_a_value_that_would_not_come_back_is_refused_by_its_path(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        save(tmp_path / "checkpoints", 0, trainer=value)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"policy": {"w": 3}}, r"policy\['w'\] is int: it must be a tensor"),
        ({"config": {"a": object()}}, r"the config of a checkpoint cannot hold this: Object of type object"),
        ({"spaces": {"a": "\ud800"}}, r"the spaces of a checkpoint cannot hold this: .*surrogates not allowed"),
        (
            {"more_weights": {"../value": {}}},
            "a network's name is made of letters, digits and _, and neither 'policy' nor",
        ),
        (
            {"more_weights": {"policy": {}}},
            "a network's name is made of letters, digits and _, and neither 'policy' nor",
        ),
        ({"step": -1}, "step is -1: it must be a whole number of at least 0"),
        ({"step": 1.5}, "step is 1.5: it must be a whole number"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"step": 1, "policy": {}, "config": {}, "spaces": {}, "trainer": {}, "retention": ONE}
    arguments |= changed
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint(tmp_path, arguments.pop("step"), **arguments)


# --- Which checkpoints are there ---


def test_the_last_keep_checkpoints_stay(tmp_path: Path) -> None:
    for step in (100, 200, 300, 400):
        save(tmp_path, step, keep=2)
    assert names(tmp_path) == ["step_000000000300.safetensors", "step_000000000400.safetensors"]


def test_after_resuming_from_an_earlier_one_the_abandoned_later_ones_go_first(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path, step)
    save(tmp_path, 150, keep=2)
    assert names(tmp_path) == ["step_000000000100.safetensors", "step_000000000150.safetensors"]
    assert load_checkpoint(tmp_path).step == 150


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 100, mark=1.0)
    save(tmp_path, 100, mark=2.0)
    assert mark_of(tmp_path) == 2.0
    assert names(tmp_path) == ["step_000000000100.safetensors"]


def test_a_run_directory_can_be_moved(tmp_path: Path) -> None:
    save(tmp_path / "a" / "checkpoints", 1, mark=3.0)
    (tmp_path / "a").rename(tmp_path / "b")
    assert mark_of(tmp_path / "b") == 3.0


@pytest.mark.parametrize(
    "given",
    [
        "",
        "checkpoints",
        "checkpoints/latest",
        "checkpoints/step_000000000200",
        "checkpoints/step_000000000200.safetensors",
    ],
)
def test_a_run_its_checkpoints_latest_and_a_step_all_resolve(tmp_path: Path, given: str) -> None:
    save(tmp_path / "checkpoints", 100)
    save(tmp_path / "checkpoints", 200)
    (tmp_path / "config.yaml").write_text("total_timesteps: 1\n")  # a run directory has one too
    assert resolve_checkpoint(tmp_path / given) == tmp_path / "checkpoints" / "step_000000000200.safetensors"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("runs/b", "no checkpoint .*runs/b: there is no b in .*runs; .*runs holds alpha, beta"),
        ("runs/alpah/checkpoints/latest", "there is no alpah in .*runs; .*; did you mean alpha?"),
        (
            "runs/alpha/checkpoints/step_000000000500",
            "the newest checkpoint in .* is step_000000000200.safetensors; did you",
        ),
        (
            "runs/alpha/metrics.jsonl",
            "metrics.jsonl is no whole checkpoint or policy file: .*; give a run directory, one of its checkpoints",
        ),
        ("runs/beta", r"looked for step_<12 digits>.safetensors in .*runs/beta, which holds notes.txt$"),
        ("runs", "in .*runs: looked for .*, which holds alpha, beta"),
    ],
)
def test_a_missing_checkpoint_says_what_is_there(tmp_path: Path, given: str, message: str) -> None:
    save(tmp_path / "runs" / "alpha" / "checkpoints", 100)
    save(tmp_path / "runs" / "alpha" / "checkpoints", 200)
    (tmp_path / "runs" / "alpha" / "metrics.jsonl").touch()
    (tmp_path / "runs" / "beta").mkdir()
    (tmp_path / "runs" / "beta" / "notes.txt").touch()
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / given)


# --- A disk that refuses, and a process that dies ---


def test_a_file_that_really_cannot_grow_is_a_checkpoint_error(tmp_path: Path) -> None:
    save(tmp_path, 100, mark=1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(
            CheckpointError, match="step_0*200.safetensors failed: File too large; the newest checkpoint is step_0*100"
        ):
            save(tmp_path, 200, trainer={"big": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step_000000000100.safetensors"]
    assert mark_of(tmp_path / "latest") == 1.0


def test_a_file_in_the_way_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match="step_0*1.safetensors failed: File exists; there is no checkpoint yet"):
        save(tmp_path / "checkpoints", 1)


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_save_that_breaks_off_leaves_what_was_there_and_the_next_one_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    save(tmp_path, 200, mark=2.0)

    def fail(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        patch.setattr(Path, "unlink", fail)  # as if the process was killed: what it wrote stays
        with pytest.raises(
            CheckpointError, match="failed: No space left on device; the newest checkpoint is step_0*200"
        ):
            save(tmp_path, 200, mark=3.0)
    assert len(names(tmp_path)) == 2 and mark_of(tmp_path) == 2.0
    save(tmp_path, 300, keep=1, mark=4.0)
    assert names(tmp_path) == ["step_000000000300.safetensors"] and mark_of(tmp_path) == 4.0


def test_a_folder_with_checkpoints_of_an_older_version_says_so(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step_000000000100").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="has checkpoints of format 3, which are folders; commit 6b82b570"):
        load_checkpoint(tmp_path)
