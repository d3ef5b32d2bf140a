"""Checkpoints of enn-trainer, this project's ancestor, go on here."""

from __future__ import annotations

import copy
import json
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from enn_ppo import EvalConfig, evaluate, train
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import load_net, saved_config
from enn_ppo.convert import blobs, convert_checkpoint, ron
from enn_ppo.convert.__main__ import main
from enn_ppo.convert.source import find_source, plain, read_source
from rogue_net.transfer.conversion import convert, convert_optimizer, is_parameter, read_description
from tests.rogue_net.test_conformance import Recording, assert_agree, make_actions, make_batch

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ["minefield", "minesweeper", "multisnake"]
# MineSweeper's choices in the order that they have here, as numbers that they have there
ORDERS = {"Move": [3, 2, 0, 1, 4]}


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def run_dir(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert_checkpoint(FIXTURES / name, tmp_path_factory.mktemp(name) / "run").run_dir


def recorded(name: str) -> Recording:
    """The frames and answers, with choices in the order that they have here."""
    with np.load(FIXTURES / name / "answers.npz", allow_pickle=False) as file:
        arrays: dict[str, NDArray[Any]] = {key: file[key] for key in file.files}
    description = json.loads(str(arrays.pop("description")))
    if name == "minesweeper":
        for action, order in ORDERS.items():
            arrays[f"actions/{action}"] = np.argsort(order)[arrays[f"actions/{action}"]]
            for key in (f"mask/{action}", f"logits/{action}"):
                arrays[key] = arrays[key][:, order]
    return Recording(arrays, description, {})


def test_the_converted_policy_answers_as_the_original_did(name: str, run_dir: Path) -> None:
    recording, net = recorded(name), load_net(load_checkpoint(run_dir))
    batch = make_batch(recording)
    evaluation = net.evaluate(batch, make_actions(recording, batch))
    assert_agree({name: rows.squeeze(1) for name, rows in evaluation.logits.items()}, recording.under("logits"))
    assert_agree(evaluation.log_probs, recording.under("log_probs"))
    assert_agree(evaluation.entropies, recording.under("entropies"))
    assert_agree({"value": evaluation.values.unsqueeze(1)}, recording.under("regressions"))


def test_a_network_of_the_value_function_is_converted_too(tmp_path: Path) -> None:
    recording = recorded("multisnake")
    checkpoint = load_checkpoint(convert_checkpoint(FIXTURES / "multisnake", tmp_path / "run").run_dir)
    values = load_net(checkpoint, "value_net").value(make_batch(recording))
    assert_agree({"value": values.unsqueeze(1)}, recording.under("value_net"))


def test_a_converted_run_is_evaluated_and_trained_further(name: str, run_dir: Path, tmp_path: Path) -> None:
    # a policy of a few updates may play long
    world = {"env_kwargs": {"max_steps": 20}} if name == "minesweeper" else {}
    result = evaluate(EvalConfig(checkpoint=str(run_dir), episodes=4, **world))  # type: ignore[arg-type]
    assert result.notes == [] and result.estimates["episodic_reward"].n == 4

    shutil.copytree(run_dir, tmp_path / "run", symlinks=True)
    config = saved_config(load_checkpoint(tmp_path / "run"))
    before = load_net(load_checkpoint(tmp_path / "run")).state_dict()
    trained = train(
        replace(config, resume=str(tmp_path / "run"), run_dir=str(tmp_path / "run"), total_timesteps=2048 + 512)
    )
    assert trained.step == 2048 + 512
    assert any(not torch.equal(tensor, before[each]) for each, tensor in trained.policy.state_dict().items())


def test_settings_have_the_names_that_they_have_here(tmp_path: Path) -> None:
    result = convert_checkpoint(FIXTURES / "minesweeper", tmp_path / "run", {"optim.lr": 0.5, "seed": 7})
    config = saved_config(load_checkpoint(result.run_dir))
    assert (config.env.id, config.env.kwargs) == (
        "MineSweeper",
        {"num_mines": 4, "orbital_cannon": True, "cooldown_period": 0, "max_steps": None},
    )
    assert (config.optim.lr, config.seed) == (0.5, 7)
    assert (config.optim.batch_size, config.optim.epochs, config.optim.max_grad_norm) == (128, 3, 2.0)
    assert (config.rollout.num_envs, config.rollout.steps, config.total_timesteps) == (16, 16, 2048)
    assert (config.ppo.advantages, config.ppo.clip, config.ppo.ent_coef, config.ppo.target_kl) == (
        "gae",
        0.2,
        0.1,
        None,
    )
    assert config.value_net is None


def test_the_optimizer_goes_on_with_its_moments(name: str) -> None:
    """Moments are converted as the weights are: where they are the weights, they become the converted weights."""
    source = read_source(FIXTURES / name)
    description = read_description(
        {
            "net": source.config["net"],
            "obs_space": source.obs_space,
            "action_space": source.action_space,
            "regression_heads": {"value": 1},
        }
    )
    given_ = copy.deepcopy(source.policy.optimizer)
    parameters = [tensor for each, tensor in source.policy.weights.items() if is_parameter(each)]
    given_["state"] = {
        number: {"step": torch.tensor(5.0), "exp_avg": tensor, "exp_avg_sq": tensor}
        for number, tensor in enumerate(parameters)
    }
    weights = convert(source.policy.weights, description)
    moments = convert_optimizer(given_, source.policy.weights, description)
    assert moments.keys() == {each for each, _ in description.make_net().named_parameters()}
    for each, known in moments.items():
        assert float(known["step"]) == 5
        torch.testing.assert_close(known["exp_avg"], weights[each])
        torch.testing.assert_close(known["exp_avg_sq"], weights[each])


def total(states: dict[Any, dict[str, Tensor]]) -> float:
    return sum(float(state["exp_avg"].square().sum()) for state in states.values())


def test_the_saved_optimizer_has_all_moments(name: str, run_dir: Path) -> None:
    source = read_source(FIXTURES / name)
    theirs = [source.policy.optimizer, *([source.value_net.optimizer] if source.value_net else [])]
    saved = load_checkpoint(run_dir).trainer["optimizer"]
    assert total(saved["state"]) == pytest.approx(sum(total(each["state"]) for each in theirs), rel=1e-5)
    steps = {float(state["step"]) for each in theirs for state in each["state"].values()}
    assert {float(state["step"]) for state in saved["state"].values()} == steps


# --- The command ---


def test_the_command_says_what_was_converted_and_what_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(FIXTURES / "minesweeper"), str(tmp_path / "run"), "optim.lr=1e-3"]) == 0
    said = capsys.readouterr().out
    for line in (
        f"into {tmp_path}/run/checkpoints/step_000000002048",
        "world: MineSweeper(max_steps=None, orbital_cannon=True, cooldown_period=0, num_mines=4)",
        "choices of 'Move': Up is y+1, Down is y-1, Left is x-1, Right is x+1",
        "policy: 32 parameters with 3,878 numbers",
        "moments of 32 of 32 parameters",
        "not converted:\n  episodes and random numbers",
        f"python -m enn_ppo.eval checkpoint={tmp_path}/run",
        f"python -m enn_ppo.train resume={tmp_path}/run total_timesteps=<more than 2,048>",
    ):
        assert line in said
    assert saved_config(load_checkpoint(tmp_path / "run")).optim.lr == 1e-3


def replaced(file: str, old: str, new: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))

    return change


def cut(file: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-100])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced("config.ron", "version: 4", "version: 3"), r"config.ron has version 3; allowed: 4"),
        (
            replaced("config.ron", "lr: 0.01", 'lr: "step: 0.01@0 lin 0@1e6"'),
            r"optim.lr='step: .*; give optim.lr=<value>",
        ),
        (replaced("config.ron", '"MineSweeper"', '"Chess"'), r"'Chess'.* env.id=<package.module:Class>"),
        (
            replaced("config.ron", '"MineSweeper"', '"subprocess:check_output"'),
            r"would import the module subprocess and call its check_output\(.*Nothing was run. Add env.id=subprocess",
        ),
        (replaced("config.ron", "nmines", "mines"), r"mines.*num_mines"),
        (replaced("config.ron", "n_layer: 1", "n_layer: 2"), r"missing \['backbone.blocks.1.ln1.weight'"),
        (replaced("config.ron", "d_qk", "d_kq"), r"net.d_kq is not a setting of rogue-net 0.1.9"),
        (replaced("config.ron", "gamma: 0.99", "gamma: 1.5"), r"ppo.gamma"),
        (replaced("config.ron", "optim: OptimizerConfig(", "optim: ("), None),
        (
            replaced("config.ron", "net: RogueNetConfig(", "net: RogueNetConfig[("),
            r"config.ron cannot be read: line \d+",
        ),
        (replaced("state.ron", "SelectEntityActionSpace()", "GridActionSpace()"), r"GridActionSpace.*known are"),
        (
            replaced("state.ron", "step: 2048", "step: -1"),
            r"state.ron is no state of enn-trainer's training.*step is -1",
        ),
        (replaced("state.ron", '"Mine"', '"Bomb"'), r"missing \['embedding.embeddings.Bomb.0.count'"),
        (replaced("state.ron", 'agent: "<blob:msgpack>"', 'agent: "<blob:pickle>"'), r"pickles, which can run code"),
        (cut("state.agent.msgpack"), r"state.agent.msgpack is cut short"),
        (cut("state.optimizer.msgpack"), r"state.optimizer.msgpack is cut short"),
        (lambda folder: (folder / "state.agent.msgpack").unlink(), r"state.agent.msgpack cannot be read: No such file"),
        (lambda folder: (folder / "state.agent.msgpack").write_bytes(b"\x80"), r"holds no weights"),
        (lambda folder: (folder / "state.agent.msgpack").write_bytes(b"\x05"), r"holds a int, and not a state_dict"),
        (
            lambda folder: (folder / "state.ron").unlink(),
            r"holds config.ron, state.agent.msgpack.*; a checkpoint of enn-tr",
        ),
    ],
)
def test_a_checkpoint_that_cannot_be_converted_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], object], message: str | None
) -> None:
    folder = shutil.copytree(find_source(FIXTURES / "minesweeper"), tmp_path / "given")
    change(folder)
    code = main([str(folder), str(tmp_path / "run")])
    if message is None:
        assert code == 0
        return
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert re.search(message, line), line
    assert not (tmp_path / "run").exists()


def test_what_is_no_checkpoint_of_enn_trainer_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = convert_checkpoint(FIXTURES / "minefield", tmp_path / "ours").run_dir
    (tmp_path / "empty").mkdir()
    for source, message in (
        (tmp_path / "gone", "there is no"),
        (FIXTURES / "minefield" / "answers.npz", "is a file"),
        (tmp_path / "empty", "holds nothing"),
        (ours, "is a run of enn-ppo already"),
    ):
        assert main([str(source), str(tmp_path / "run")]) == 2
        error = capsys.readouterr().err
        assert str(source) in error and message in error and "latest-step000000059392" in error
    assert main([str(FIXTURES / "minefield"), str(ours)]) == 2
    assert "already" in capsys.readouterr().err
    assert main([str(FIXTURES / "minefield"), str(ours), "overwrite=true"]) == 0
    for setting, message in (("optim", "name=value"), ("optim.rate=1", "optim.rate"), ("seed=[", "no YAML")):
        assert main([str(FIXTURES / "minefield"), str(tmp_path / "run"), setting]) == 2
        assert message in capsys.readouterr().err


# --- The formats ---


def test_ron_is_read_as_it_is_written() -> None:
    text = """
    // a comment
    Outer(name: "a \\"b\\"\\n\\u{e9}", numbers: [1, -2.5, 1e-3, 1_000, inf, -inf], none: None, some: Some(3), on: true,
        inner: Inner(x: (1, 2),), bare: relu, unit: Unit(), map: {"k": {1: "one"}}, empty: [],)
    """
    assert plain(ron.loads(text)) == {
        "name": 'a "b"\né',
        "numbers": [1, -2.5, 0.001, 1000, float("inf"), float("-inf")],
        "none": None,
        "some": 3,
        "on": True,
        "inner": {"x": [1, 2]},
        "bare": "relu",
        "unit": {},
        "map": {"k": {1: "one"}},
        "empty": [],
    }
    assert ron.loads(text).name == "Outer"


@pytest.mark.parametrize(
    "text",
    ["", "(", "(a: 1", "(a: )", "(a: 1 b: 2)", "{1}", '"open', "(a: 1) 2", "@", "[" * 200, "(a: 1, a: 2)", '"\\q"'],
)
def test_what_is_not_ron_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d+: expected .*, found "):
        ron.loads(text)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        blobs.loads(data)
    except ValueError:
        pass


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x7f", 127),
        (b"\xff", -1),
        (b"\xcd\x01\x00", 256),
        (b"\xd3" + struct.pack(">q", -(2**40)), -(2**40)),
        (b"\xcb" + struct.pack(">d", 0.1), 0.1),
        (b"\xa2hi", "hi"),
        (b"\xd9\x02hi", "hi"),
        (b"\xc4\x01\x00", b"\x00"),
        (b"\x93\xc0\xc2\xc3", [None, False, True]),
        (b"\xdc\x00\x01\x05", [5]),
        (b"\x82\x01\x02\xa1a\x90", {1: 2, "a": []}),
        (b"\xde\x00\x01\x05\x06", {5: 6}),
    ],
)
def test_values_of_every_kind(data: bytes, value: Any) -> None:
    assert blobs.loads(data) == value


def tensor_of(dtype: bytes, shape: bytes, data: bytes) -> bytes:
    def pair(key: bytes, value: bytes) -> bytes:
        return b"\xc4" + bytes([len(key)]) + key + value

    return (
        b"\x84"
        + pair(b"__tensor__", b"\xa5torch")
        + pair(b"dtype", bytes([0xA0 + len(dtype)]) + dtype)
        + pair(b"shape", shape)
        + pair(b"data", b"\xc4" + bytes([len(data)]) + data)
    )


def test_arrays_are_tensors_and_hold_numbers_alone() -> None:
    read = blobs.loads(tensor_of(b"<f4", b"\x92\x01\x02", struct.pack("<2f", 1.5, -2)))
    assert torch.equal(read, torch.tensor([[1.5, -2.0]]))
    for dtype, shape, data in (
        (b"|O", b"\x91\x01", bytes(8)),
        (b"<f4", b"\x91\x03", bytes(8)),
        (b"<f4", b"\x91\xff", bytes(4)),
        (b"<f4", b"\x05", bytes(4)),
        (b"<U1", b"\x91\x01", bytes(4)),
    ):
        with pytest.raises(ValueError, match="has an array of dtype"):
            blobs.loads(tensor_of(dtype, shape, data))
    with pytest.raises(ValueError, match="values within values"):
        blobs.loads(b"\x91" * 100)
    with pytest.raises(ValueError, match="bytes too many"):
        blobs.loads(b"\x01\x01")
    with pytest.raises(ValueError, match="unknown kind 0xc1"):
        blobs.loads(b"\xc1")
