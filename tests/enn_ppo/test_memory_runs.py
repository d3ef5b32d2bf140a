"""Whole runs of policies that remember: everything that trains and plays carries their state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_ppo import (
    EvalConfig,
    OptimConfig,
    PPOConfig,
    RogueNetConfig,
    RolloutConfig,
    SelfPlayConfig,
    evaluate,
    load_policy,
    train,
)
from enn_ppo.checkpoints import load_checkpoint
from enn_ppo.checkpoints.policy import load_net
from enn_ppo.clone import samples_of, windows
from enn_ppo.export import main as export
from enn_ppo.ppo import Samples, gae
from enn_ppo.settings.command_line.cli import run_train
from enn_ppo.settings.evaluation import WatchConfig
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.learner import Learner
from enn_ppo.training.learning.teacher import Teacher
from enn_ppo.training.recording import read_all
from enn_ppo.watch import watch
from entity_gym import Entity, ObsSpace
from entity_gym.pools.pool import ListEnv
from rogue_net import ObsBatch, RogueNet
from rogue_net.transfer import transfer
from tests.enn_ppo.memory_worlds import ARMIES, Marks, net, remembering
from tests.enn_ppo.recordings import collector_of
from tests.enn_ppo.replay_contract import read
from tests.enn_ppo.rows import assert_same_end, rows_of, rows_without_times
from tests.enn_ppo.worlds import StopAfter

CPU = torch.device("cpu")
PLAIN = RogueNetConfig(d_model=8, n_layer=1, n_head=1)


def trained_net(seed: int = 0, **changes: Any) -> RogueNet:
    """A network whose memory has an effect, as after some training."""
    torch.manual_seed(seed)
    made = RogueNet(net("both", **changes), Marks().obs_space(), Marks().action_space())
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made.eval()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    train(remembering(run_dir))
    return run_dir


# --- Exact resume, in the middle of episodes

RUNS: dict[str, dict[str, Any]] = {
    "entities": {},
    "both, by PyTorch's modules": {"net": net("both", backend="reference")},
    "short sequences, micro-batches, target_kl": {
        "optim": OptimConfig(batch_size=16, epochs=3, sequence_length=4, micro_batch_size=8),
        "ppo": PPOConfig(target_kl=1e-5),
    },
    "two halves": {"rollout": RolloutConfig(num_envs=4, steps=6, pipeline=2)},
    "a value network without memory": {"value_net": PLAIN},
    "a value network with its own": {"value_net": replace(PLAIN, memory="frame"), "net": net("both")},
    "only the value network remembers": {"value_net": replace(PLAIN, memory="entity"), "net": PLAIN},
    "teacher": {"ppo": PPOConfig(teacher="{run}")},
    "self-play": {
        "env": ARMIES,
        "self_play": SelfPlayConfig(enabled=True, snapshot_interval=32, pool_size=2),
    },
    "policies": {"env": ARMIES, "policies": {"red": [0], "blue": [1]}},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_stopped_and_resumed_is_the_one_that_was_not(name: str, run: Path, tmp_path: Path) -> None:
    changes = {"rollout": RolloutConfig(num_envs=4, steps=6)} | RUNS[name]  # episodes of `Marks` have four steps
    if name == "teacher":
        changes["ppo"] = PPOConfig(teacher=str(run))

    def play(folder: str, *callbacks: Any, **more: Any) -> None:
        train(remembering(tmp_path / folder, total_timesteps=120, **changes, **more), callbacks=callbacks)

    play("whole")
    play("parts", StopAfter(48))
    policies = changes.get("policies", {"": []})
    for policy in policies:
        trainer = load_checkpoint(tmp_path / "parts" / policy).trainer
        assert any(each and each["known"] for each in states_in(trainer)), "something is remembered"
    play("parts", resume=str(tmp_path / "parts"))
    for policy in policies:
        assert rows_without_times(tmp_path / "parts" / policy) == rows_without_times(tmp_path / "whole" / policy)
        assert_same_end(tmp_path / "parts" / policy, tmp_path / "whole" / policy)
    if name.startswith("short"):
        assert [row["epochs"] for row in rows_of(tmp_path / "whole")].count(3) < 5, "target_kl has ended some early"


def states_in(trainer: Any) -> list[Any]:
    """The states of policies in the trainer's part of a checkpoint."""
    blocks = trainer["collector"].get("blocks", [trainer["collector"]])
    return [states for block in blocks for states in block["policies"]]


def test_memory_is_learned_from_what_comes_later(run: Path) -> None:
    net = load_net(load_checkpoint(run), device=CPU)
    assert net.transformer.memory is not None and bool((net.transformer.memory.first != 0).any())


# --- Teachers


@pytest.mark.parametrize("remembers", [True, False])
def test_a_teachers_logits_are_those_of_its_acting(remembers: bool) -> None:
    """In rollouts that begin and end in the middle of episodes."""
    teacher, policy = trained_net(1), trained_net(2)
    if not remembers:
        torch.manual_seed(3)
        teacher = RogueNet(PLAIN, Marks().obs_space(), Marks().action_space()).eval()
    block = collector_of(Marks, 3, net=policy)
    taught, state = Teacher(teacher), None
    for _ in range(3):
        rollout = block.collect(6)
        logits = taught.logits(rollout)["Say"]
        found = []
        for step in rollout.frames.split([3] * 6):
            alone = []
            for env in range(3):
                frame, known = step.obs[torch.tensor([env])], None if state is None else state[env]
                acted = teacher.act(frame, None if step.step[env] == 0 else known, greedy=True, logits=True)
                assert acted.logits is not None
                alone.append((acted.logits["Say"].values, acted.state))
            found += [values for values, _ in alone]
            state = [after for _, after in alone]
        torch.testing.assert_close(logits.values, torch.cat(found), atol=1e-5, rtol=1e-5)
        assert logits.lengths.tolist() == [2] * 18


def test_a_teacher_that_is_the_policy_is_at_distance_zero(tmp_path: Path, run: Path) -> None:
    config = remembering(tmp_path / "a", resume=str(run), total_timesteps=192)
    train(replace(config, ppo=PPOConfig(teacher=str(run)), optim=OptimConfig(batch_size=32, epochs=1, lr=1e-9)))
    assert rows_of(tmp_path / "a")[-1]["teacher_kl"] == pytest.approx(0, abs=1e-6)


# --- Memory that is new


def test_memory_that_is_new_changes_nothing_at_first_and_then_learns(tmp_path: Path) -> None:
    train(remembering(tmp_path / "plain", net=net("none")))
    saved = load_net(load_checkpoint(tmp_path / "plain"), device=CPU)
    torch.manual_seed(0)
    now = RogueNet(net("both"), Marks().obs_space(), Marks().action_space())
    news = transfer(saved, now).news
    assert news == ("net.memory=both is new: what is remembered has no effect at first",)
    obs = collector_of(Marks, 3, net=saved).collect(6).frames.obs
    before, after = (each.act(obs, greedy=True, logits=True) for each in (saved, now))
    assert before.logits is not None and after.logits is not None
    torch.testing.assert_close(after.logits["Say"].values, before.logits["Say"].values)
    torch.testing.assert_close(after.values, before.values)

    train(remembering(tmp_path / "more", resume=str(tmp_path / "plain"), total_timesteps=256))
    net_ = load_net(load_checkpoint(tmp_path / "more"), device=CPU)
    memory = net_.transformer.memory
    assert (
        memory is not None
        and float(memory.out.weight.detach().abs().sum()) > 0
        and float(memory.first.detach().abs().sum()) > 0
    )


def test_memory_is_not_taken_away(tmp_path: Path, run: Path) -> None:
    with pytest.raises(ValueError, match="its setting memory was entity in training and is none"):
        train(remembering(tmp_path / "a", net=net("none"), resume=str(run), total_timesteps=192))


def test_an_entity_type_may_come_to_a_policy_that_remembers(run: Path) -> None:
    saved = load_net(load_checkpoint(run), device=CPU)
    space = ObsSpace({"Cup": Entity(["size"]), **Marks().obs_space().entities}, ["begins"])
    transfer(saved, RogueNet(saved.config, space, saved.action_space))


# --- Cloning


def test_windows_cover_all_frames() -> None:
    assert windows(10, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [6, 7, 8, 9]]
    assert windows(8, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert windows(3, 32).tolist() == [[0, 1, 2]]


def test_recorded_frames_are_sequences_in_which_a_clone_goes_on_as_the_expert_did(run: Path, tmp_path: Path) -> None:
    record = str(tmp_path / "a.rec")
    evaluate(EvalConfig(checkpoint=str(run), episodes=6, num_envs=3, device="cpu", record=record))
    frames = read_all(Path(record))
    frames = frames.gather(torch.randperm(len(frames)))
    model = ActorCritic(load_net(load_checkpoint(run), device=CPU))
    config = remembering(tmp_path / "b")
    learner = Learner(
        model, torch.optim.AdamW(model.parameters()), config.optim, config.ppo, Marks().action_space(), seed=0
    )
    samples = samples_of(frames, frames.returns(0.9), learner)
    assert samples.step.tolist() == [0, 1, 2, 3] * 6 and samples.follows.tolist() == [False, True, True, True] * 6
    found = model.eval().evaluate(samples.obs, samples.actions, None, samples.follows)
    torch.testing.assert_close(found.log_probs["Say"].values, samples.log_probs["Say"].values, atol=1e-5, rtol=1e-5)


# --- Playing


def test_an_evaluation_a_file_and_a_loaded_policy_remember_alike(run: Path, tmp_path: Path) -> None:
    scores = []
    assert export([str(run), str(tmp_path / "file.safetensors")]) == 0
    for checkpoint in (run, tmp_path / "file.safetensors"):
        result = evaluate(EvalConfig(checkpoint=str(checkpoint), episodes=6, num_envs=4, greedy=True, device="cpu"))
        scores.append(result.estimates["episodic_reward"].mean)
    assert scores[0] == scores[1]

    policy, world = load_policy(tmp_path / "file.safetensors"), Marks()

    def later(*marks: int) -> float | None:
        """The value of the second observation, which is the same whatever the marks."""
        policy.reset()
        world.step, world.marks, world.order = 0, list(marks), [0, 1]
        if marks:
            policy.act(world._observation(0.0))
        world.step = 1
        return policy.act(world._observation(0.0)).value

    assert later(0, 0) != later(1, 1) and later(0, 1) == later(0, 1) and later() == later()


@pytest.mark.parametrize("opponent", ["policies", "past"])
def test_policies_and_opponents_remember_in_evaluations(opponent: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"policies": {"red": [0], "blue": [1]}}
    if opponent == "past":
        changes = {"self_play": SelfPlayConfig(enabled=True, snapshot_interval=32, pool_size=2)}
    train(remembering(tmp_path / "a", env=ARMIES, total_timesteps=64, **changes))
    run = tmp_path / "a" / ("red" if opponent == "policies" else "")
    for num_envs in (1, 4):  # whoever plays beside
        config = EvalConfig(checkpoint=str(run), episodes=4, num_envs=num_envs, opponent=opponent, device="cpu")
        assert evaluate(config).estimates["episodic_reward"].n == 4


@pytest.mark.parametrize("of_policy", ["entity", "none"])
def test_a_value_network_remembers_in_evaluations_too(of_policy: Any, tmp_path: Path) -> None:
    """The values of a recording are those of acting and judging by hand."""
    train(remembering(tmp_path / "a", net=net(of_policy), value_net=net("both"), total_timesteps=64))
    record = str(tmp_path / "a.rec")
    evaluate(EvalConfig(checkpoint=str(tmp_path / "a"), episodes=6, num_envs=3, device="cpu", record=record))
    frames = read_all(Path(record))
    judge = load_net(load_checkpoint(tmp_path / "a"), "value_net", device=CPU)
    for episode in frames.episode.unique().tolist():
        own = frames.gather((frames.episode == episode).nonzero()[:, 0])
        assert own.step.tolist() == [0, 1, 2, 3]
        values = judge.value(own.obs, None, own.step > 0)
        torch.testing.assert_close(own.values, values, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(values, judge.value(own.obs), atol=1e-4)


def test_a_page_shows_how_much_memory_has_changed(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    watch(WatchConfig(run=str(run), episodes=2, output=str(path), open=False))
    replay = read(path)
    for episode in replay["episodes"]:
        views = [step["views"][0] for step in episode["steps"]]
        assert all(0 < share <= 1 for view in views[:-1] for share in view["memory"][:2]), "of both shells"
        assert all(view["memory"][2:] == [None] * 2 for view in views[:-1]), "the table and the frame remember nothing"
        assert "memory" not in views[-1]


def test_changes_of_states_by_hand() -> None:
    made = trained_net()
    pool = ListEnv(Marks, 2, 0)
    batch = ObsBatch.from_vec_obs(pool.reset())
    memory = made.transformer.memory
    assert memory is not None
    state = made.act(batch, greedy=True).state
    assert state is not None
    hidden: Any = state["hidden"]
    longer = {**state, "hidden": hidden._replace(values=3 * hidden.values)}
    for after, share in ((longer, 0.5), (state, 0.0)):  # |3h - h| / 4|h|, and nothing
        changed = memory.changes(batch, state, after)
        assert changed.offsets.tolist() == [0, 4, 8]
        of_frames = changed.values.view(2, 4)  # two shells, a table without an id, and the frame
        assert of_frames[:, 2].isnan().all()
        torch.testing.assert_close(of_frames[:, [0, 1, 3]], torch.full((2, 3), share), atol=1e-6, rtol=0)


# --- Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["env.id=tests.enn_ppo.worlds:Copycat", "net.memory=frame"],
            "the frame's memory is that of its global entity",
        ),
        (
            ["net.memory=entity", "net.memory_types=[Table]"],
            "those of 'Table' have none: give `ids` in the observation",
        ),
        (["net.memory=entity", "net.memory_types=[Shel]"], "unknown entity type 'Shel'; allowed: 'Shell'"),
        (["net.memory=entity", "net.memory_types=[]"], "no entity type is left to remember"),
        (["net.memory_types=[Shell]"], "net.memory_types needs net.memory=entity or both, got net.memory=none"),
        (["net.memory=entities"], "net.memory is 'entities'; allowed: 'none', 'entity', 'frame', 'both'"),
    ],
)
def test_mistakes_are_told_in_a_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = [
        "env=custom", "env.id=tests.enn_ppo.memory_worlds:Marks",
        "rollout.num_envs=2", "rollout.steps=2", "optim.batch_size=4", "total_timesteps=8", "device=cpu",
        f"run_dir={tmp_path / 'a'}",
    ]  # fmt: skip
    assert run_train(train, [*own, *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said


def test_a_separate_value_network_goes_on_through_its_own_sequences() -> None:
    """Evaluated as whole sequences, values are those of the rollout."""
    torch.manual_seed(0)
    model = ActorCritic(trained_net(), trained_net(4))
    rollout = collector_of(Marks, 3, net=model).collect(8)
    columns = map(rollout.by_step, ("rewards", "values", "terminated", "truncated", "final_values"))
    samples = Samples.of(rollout, gae(*columns, rollout.last_values, gamma=0.9, gae_lambda=1))
    order = torch.from_numpy(np.arange(24).reshape(8, 3).T.flatten().copy())
    whole = samples.gather(order)
    whole.follows[::8] = False
    found = model.eval().evaluate(whole.obs, whole.actions, whole.state, whole.follows)
    torch.testing.assert_close(found.values, whole.values, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.log_probs["Say"].values, whole.log_probs["Say"].values, atol=1e-5, rtol=1e-5)
