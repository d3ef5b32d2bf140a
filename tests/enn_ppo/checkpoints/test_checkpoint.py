"""What a checkpoint promises: everything comes back exactly, and no crash takes away what was there."""

import enum
import io
import os
import pickle
import re
import resource
import shutil
import zipfile
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
from enn_ppo.checkpoints.saving import trainer_bytes
from enn_ppo.checkpoints.stored_values import decode
from tests.enn_ppo.forged import sealed

ONE = Retention(keep_last=1)
FULL_DISK = OSError(28, "No space left on device")


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
    folder = save(tmp_path, 12800, mark=2.5)
    assert folder == tmp_path / "step_000000012800"
    assert names(folder) == ["policy.safetensors", "trainer.pt"]
    loaded = load_checkpoint(folder)
    assert (loaded.path, loaded.step) == (folder, 12800)
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
    result = round_trip(tmp_path, value)
    assert result == value
    assert type(result[1]) is tuple and type(result[1][1][2]) is bool and type(result["nested"][0]) is tuple


@pytest.mark.parametrize("bits", [63, 64, 128, 1999, 2000, 2001, 50_000])
def test_an_int_of_any_size_comes_back(tmp_path: Path, bits: int) -> None:
    assert round_trip(tmp_path, [1 << bits, -(1 << bits) - 1]) == [1 << bits, -(1 << bits) - 1]


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
    buffer = trainer_bytes(0, {"a": array})
    content = torch.load(io.BytesIO(buffer), weights_only=True)
    result = decode(content, 2**30)["a"]
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


def test_a_view_of_a_tensor_does_not_drag_its_whole_storage_along(tmp_path: Path) -> None:
    folder = save(tmp_path, 0, trainer={"view": torch.zeros(1_000_000)[:2]})
    assert load_checkpoint(folder).trainer["view"].tolist() == [0.0, 0.0]
    assert (folder / "trainer.pt").stat().st_size < 10_000


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
        ({"a": {"__enn_ppo__": 3}}, r"trainer\['a'\] has the key '__enn_ppo__', which is reserved"),
        ({"a": torch.eye(2).to_sparse()}, r"trainer\['a'\] is a tensor of layout torch.sparse_coo: it must be dense"),
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
        ({"more_weights": {"../value": {}}}, "a network's name is made of letters, digits and _, and not 'policy'"),
        ({"more_weights": {"policy": {}}}, "a network's name is made of letters, digits and _, and not 'policy'"),
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
    assert names(tmp_path) == ["latest", "step_000000000300", "step_000000000400"]
    assert os.readlink(tmp_path / "latest") == "step_000000000400"


def test_after_resuming_from_an_earlier_one_the_abandoned_later_ones_go_first(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path, step)
    save(tmp_path, 150, keep=2)
    assert names(tmp_path) == ["latest", "step_000000000100", "step_000000000150"]
    assert load_checkpoint(tmp_path).step == 150


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 100, mark=1.0)
    save(tmp_path, 100, mark=2.0)
    assert mark_of(tmp_path) == 2.0
    assert names(tmp_path) == ["latest", "step_000000000100"]


def test_leftovers_of_crashes_are_swept(tmp_path: Path) -> None:
    (tmp_path / ".saving_dead").mkdir()
    (tmp_path / ".saving_dead" / "policy.safetensors").write_bytes(b"half")
    (tmp_path / ".saving_link").symlink_to("step_000000000001")
    save(tmp_path, 1)
    assert names(tmp_path) == ["latest", "step_000000000001"]


def test_the_folder_has_the_permissions_that_any_new_folder_has(tmp_path: Path) -> None:
    (tmp_path / "ordinary").mkdir()
    assert save(tmp_path / "c", 1).stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_a_run_directory_can_be_moved(tmp_path: Path) -> None:
    save(tmp_path / "a" / "checkpoints", 1, mark=3.0)
    (tmp_path / "a").rename(tmp_path / "b")
    assert mark_of(tmp_path / "b") == 3.0


@pytest.mark.parametrize("given", ["", "checkpoints", "checkpoints/latest", "checkpoints/step_000000000200"])
def test_a_run_its_checkpoints_latest_and_a_step_all_resolve(tmp_path: Path, given: str) -> None:
    save(tmp_path / "checkpoints", 100)
    save(tmp_path / "checkpoints", 200)
    (tmp_path / "config.yaml").write_text("total_timesteps: 1\n")  # a run directory has one too
    assert resolve_checkpoint(tmp_path / given) == tmp_path / "checkpoints" / "step_000000000200"


def test_a_step_folder_may_be_copied_and_renamed(tmp_path: Path) -> None:
    save(tmp_path, 100).rename(tmp_path / "best")
    assert load_checkpoint(tmp_path / "best").step == 100


@pytest.mark.parametrize(
    ("content", "step"),
    [
        ("step_000000000100", 100),
        ("step_000000000100\n", 100),
        ("step_000000000900", 200),
        ("../x", 200),
        ("\0", 200),
        ("", 200),
    ],
)
def test_latest_may_be_a_file_that_holds_the_name_of_a_folder_beside_it(
    tmp_path: Path, content: str, step: int, recwarn: pytest.WarningsRecorder
) -> None:
    for each in (100, 200):
        save(tmp_path, each)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").write_text(content)
    for path in (tmp_path, tmp_path / "latest"):
        assert load_checkpoint(path).step == step
    told = [str(warning.message) for warning in recwarn if "leads to no checkpoint beside it" in str(warning.message)]
    assert bool(told) == (step == 200)


@pytest.mark.parametrize(
    ("target", "state"), [("step_000000000900", "leads to no checkpoint beside it"), (None, "is missing")]
)
@pytest.mark.parametrize("given", ["", "checkpoints", "checkpoints/latest"])
def test_without_latest_the_newest_complete_checkpoint_is_used(
    tmp_path: Path, target: str | None, state: str, given: str
) -> None:
    home = tmp_path / "checkpoints"
    for step in (100, 200, 300):
        save(home, step)
    (home / "step_000000000300" / "trainer.pt").unlink()
    (home / "latest").unlink()
    if target:
        (home / "latest").symlink_to(target)
    with pytest.warns(UserWarning, match=f"latest {state}: using the newest complete checkpoint, .*step_0*200"):
        assert resolve_checkpoint(tmp_path / given) == home / "step_000000000200"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("runs/b", "no checkpoint .*runs/b: there is no b in .*runs; .*runs holds alpha, beta"),
        ("runs/alpah/checkpoints/latest", "there is no alpah in .*runs; .*; did you mean alpha?"),
        ("runs/alpha/checkpoints/step_000000000500", "the newest checkpoint in .* is step_000000000200; did you mean"),
        (
            "runs/alpha/metrics.jsonl",
            "metrics.jsonl is no whole policy file: .*; give a run directory, its checkpoints folder",
        ),
        ("runs/beta", r"looked for latest and step_<12 digits> in .*runs/beta, which holds notes.txt$"),
        ("runs", "in .*runs: looked for latest and .*, which holds alpha, beta"),
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


# --- Damage ---


def cut(file: Path, part: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * part)])


@pytest.mark.parametrize(
    ("file", "part"),
    [("policy.safetensors", 0.9), ("policy.safetensors", 0.0), ("trainer.pt", 0.5), ("trainer.pt", 0.0)],
)
def test_a_file_cut_short_is_named_with_the_newest_complete_checkpoint(tmp_path: Path, file: str, part: float) -> None:
    save(tmp_path, 100)
    folder = save(tmp_path, 200)
    cut(folder / file, part)
    advice = r"the newest complete checkpoint beside it is \S*step_0*100$"
    with pytest.raises(CheckpointError, match=rf"step_0*200 is damaged: {file}: .*; {advice}"):
        load_checkpoint(tmp_path / "latest")
    if file == "trainer.pt":
        with pytest.raises(CheckpointError, match=rf"trainer.pt: .*; {advice}"):
            load_checkpoint(sealed(folder))


def test_missing_files_are_named(tmp_path: Path) -> None:
    folder = save(tmp_path, 200)
    for file in ("trainer.pt", "policy.safetensors"):
        (folder / file).unlink()
        with pytest.raises(CheckpointError, match=f"is half-written: .*{file}.* is missing; there is no other"):
            load_checkpoint(folder)


def test_where_nothing_is_complete_and_latest_is_gone_the_newest_is_explained(tmp_path: Path) -> None:
    (save(tmp_path, 200) / "trainer.pt").unlink()
    (tmp_path / "latest").unlink()
    with pytest.raises(CheckpointError, match="no complete checkpoint in .*step_0*200 is half-written: trainer.pt"):
        load_checkpoint(tmp_path)


class Malice:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.victim}",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_loading_never_executes_code(tmp_path: Path) -> None:
    folder = save(tmp_path / "c", 1)
    torch.save({"value": Malice(tmp_path / "pwned")}, folder / "trainer.pt")
    with pytest.raises(CheckpointError, match=r"trainer.pt: names \w+.system; refused, because only data is read"):
        load_checkpoint(sealed(folder))
    with zipfile.ZipFile(folder / "trainer.pt", "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Malice(tmp_path / "pwned")))
    with pytest.raises(CheckpointError, match=r"damaged: trainer.pt: "):
        load_checkpoint(sealed(folder))
    (folder / "trainer.pt").write_bytes(pickle.dumps(Malice(tmp_path / "pwned")))
    with pytest.raises(CheckpointError, match=r"damaged: trainer.pt: "):
        load_checkpoint(sealed(folder))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"__enn_ppo__": "set"}, "holds a value of the unknown kind 'set'"),
        (
            {
                "__enn_ppo__": "array",
                "dtype": "|O",
                "shape": [1],
                "order": "C",
                "data": torch.zeros(8, dtype=torch.uint8),
            },
            "trainer.pt: holds an array of dtype object",
        ),
        (
            {
                "__enn_ppo__": "array",
                "dtype": "<f8",
                "shape": [9],
                "order": "C",
                "data": torch.zeros(8, dtype=torch.uint8),
            },
            "trainer.pt: buffer is too small",
        ),
    ],
)
def test_a_forged_trainer_file_is_refused(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    folder = save(tmp_path, 1)
    torch.save({"a": content}, folder / "trainer.pt")
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(sealed(folder))


# --- A disk that refuses, and a process that dies ---


def failing_at(original: Any, call: int) -> Any:
    calls = 0

    def fail(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise FULL_DISK
        return original(*arguments, **keywords)

    return fail


def saves_until_it_works(
    monkeypatch: pytest.MonkeyPatch, root: Path, function: tuple[Any, str], step: int
) -> tuple[Path, int]:
    """Save with `function` failing from its first call on, its second, and so on; return where and after how many."""
    for call in range(1, 40):
        directory = root / str(call)
        save(directory, 100, mark=1.0)
        save(directory, 200, mark=2.0)
        with monkeypatch.context() as patch:
            patch.setattr(*function, failing_at(getattr(*function), call))
            try:
                save(directory, step, keep=2, mark=3.0)
                return directory, call - 1
            except CheckpointError as error:
                assert re.search(r"saving checkpoint .* failed: No space left on device; `latest` is ", str(error))
                assert isinstance(error.__cause__, OSError)
        assert mark_of(directory / "latest") in (2.0, 3.0)
        for folder in directory.glob("step_*"):
            load_checkpoint(folder)
        save(directory, step, keep=2, mark=4.0)  # once there is room again
        assert mark_of(directory / "latest") == 4.0
        assert len(names(directory)) == 3 and os.readlink(directory / "latest") == f"step_{step:012d}"
    raise AssertionError("never worked")


@pytest.mark.parametrize("step", [300, 200], ids=["a new step", "a step that exists"])
@pytest.mark.parametrize(
    ("function", "fails_at_least"),
    [
        ((torch, "save"), 1),
        ((os, "fsync"), 4),
        ((os, "symlink"), 1),
        ((os, "replace"), 3),
        ((Path, "mkdir"), 2),
        ((shutil, "rmtree"), 1),
    ],
    ids=["save", "fsync", "symlink", "replace", "mkdir", "rmtree"],
)
def test_a_full_disk_at_any_call_leaves_loadable_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: tuple[Any, str], fails_at_least: int, step: int
) -> None:
    directory, failures = saves_until_it_works(monkeypatch, tmp_path, function, step)
    assert failures >= fails_at_least
    assert mark_of(directory / "latest") == 3.0
    assert len(names(directory)) == 3 and os.readlink(directory / "latest") == f"step_{step:012d}"


def test_a_file_that_really_cannot_grow_is_a_checkpoint_error(tmp_path: Path) -> None:
    save(tmp_path, 100, mark=1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match="step_000000000200 failed: File too large; `latest` is step_0*100"):
            save(tmp_path, 200, trainer={"big": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["latest", "step_000000000100"]
    assert mark_of(tmp_path / "latest") == 1.0


def test_a_file_in_the_way_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match="checkpoints/step_0*1 failed: File exists; there is no `latest` yet"):
        save(tmp_path / "checkpoints", 1)
