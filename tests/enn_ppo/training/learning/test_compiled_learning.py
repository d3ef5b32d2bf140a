"""The compiled step against the modules: losses, gradients, optimizer steps."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_ppo.ppo import Samples, ppo_loss, update, weigh
from enn_ppo.settings.learning import OptimConfig, PPOConfig, PPOSettings
from enn_ppo.training.learning.actor_critic import ActorCritic
from enn_ppo.training.learning.compiled import CompiledPPO
from enn_ppo.training.learning.optimizer import AdamW
from entity_gym import (
    Angle,
    CategoricalActionMask,
    CategoricalActionSpace,
    Category,
    Entity,
    Flag,
    Observation,
    ObsSpace,
    SelectEntitiesActionMask,
    SelectEntitiesActionSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_gym.batch.batching import batch_observations
from rogue_net import FrameKeys, ObsBatch, RaggedTensor, RogueNet, RogueNetConfig, keyed
from rogue_net.kernels.cpu import columns
from tests.rogue_net import backends
from tests.rogue_net.backends import MOVE, SHIP, Scene
from tests.rogue_net.worlds import World, batches, make_net, to_batch, worlds

ppo_settings = st.builds(
    PPOConfig,
    clip=st.sampled_from([0.05, 0.2]),
    clip_value=st.booleans(),
    ent_coef=st.sampled_from([0.0, 0.05]),
    vf_coef=st.sampled_from([0.5, 1.0]),
    ratio=st.sampled_from(["per_actor", "joint"]),
    weighting=st.sampled_from(["actor", "frame"]),
    normalize_advantages=st.booleans(),
)

TYPED = World(
    ObsSpace(
        {
            "unit": Entity(["x", "y", Angle("heading"), Flag("armed"), Category("kind", 3)]),
            "tile": Entity([Category("ground", 2), Category("owner", 4)]),
            "flag": Entity([]),
        }
    ),
    {
        "move": CategoricalActionSpace([str(choice) for choice in range(11)]),
        "pick": SelectEntityActionSpace(nobody=True),
        "like": SelectEntitiesActionSpace(),
        "visit": SelectEntitiesActionSpace(ordered=True, min=1, max=3),
    },
)


def typed_observations(count: int, seed: int) -> list[Observation]:
    """Frames of typed features in which units act, and select anything, or nobody, and sets."""
    rng = torch.Generator().manual_seed(seed)

    def whole(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=rng)

    observations = []
    for _ in range(count):
        units, tiles, flags = whole(5, 3).tolist()
        counts = {"unit": units, "tile": tiles, "flag": flags}
        ids = {name: [(name, i) for i in range(number)] for name, number in counts.items()}
        everything = [each for of_type in ids.values() for each in of_type]
        plain = torch.randn(units, 3, generator=rng) * 3
        features = {
            "unit": torch.cat([plain, whole(2, units, 1), whole(3, units, 1)], dim=1).numpy(),
            "tile": torch.cat([whole(2, tiles, 1), whole(4, tiles, 1)], dim=1).float().numpy(),
            "flag": torch.zeros(flags, 0).numpy(),
        }
        mask = (whole(3, units, len(everything)) > 0).tolist() if units else None
        actions: dict[str, Any] = {
            "move": CategoricalActionMask(actor_ids=ids["unit"]),
            "pick": SelectEntityActionMask(actor_ids=ids["unit"], actee_ids=everything, mask=mask),
            "like": SelectEntitiesActionMask(actor_ids=ids["unit"], actee_ids=everything, mask=mask),
            "visit": SelectEntitiesActionMask(actor_types=["unit"], actee_types=["tile", "flag"]),
        }
        observations.append(Observation(features=features, ids=ids, actions=actions))
    return observations


def typed_batch(count: int, seed: int) -> ObsBatch:
    return ObsBatch.from_vec_obs(
        batch_observations(typed_observations(count, seed), TYPED.obs_space, TYPED.action_space)
    )


def typed_net(config: RogueNetConfig) -> RogueNet:
    return RogueNet(config, TYPED.obs_space, TYPED.action_space)


def samples_of(
    obs: ObsBatch,
    actions: dict[str, RaggedTensor],
    log_probs: dict[str, RaggedTensor],
    values: torch.Tensor,
    **learned: Any,
) -> Samples:
    """Samples in which learning reads nothing but what is given; `learned` are the columns that `Samples` adds."""
    rows = len(values)
    nothing, never = torch.zeros(rows), torch.zeros(rows, dtype=torch.bool)
    numbers = torch.arange(rows)
    return Samples(
        obs=obs,
        env_id=numbers,
        step=torch.zeros_like(numbers),
        actions=actions,
        log_probs=log_probs,
        values=values,
        rewards=nothing,
        terminated=never,
        truncated=never,
        final_values=nothing,
        **learned,
    )


def samples(net: RogueNet, batch: ObsBatch, seed: int = 0) -> Samples:
    """Frames in which a similar policy has acted."""
    rng = torch.Generator().manual_seed(seed)
    acted = net.act(batch, generator=rng)
    log_probs = {
        name: old._replace(values=old.values + 0.2 * torch.randn(old.values.shape, generator=rng))
        for name, old in acted.log_probs.items()
    }
    numbers = torch.randn(3, len(batch), generator=rng)
    values = acted.values + 0.3 * numbers[0]
    return samples_of(batch, acted.actions, log_probs, values, advantages=numbers[1], returns=numbers[2])


def test_acting_sees_the_step_of_an_optimizer_that_leaves_versions_alone() -> None:
    torch.manual_seed(7)
    nets = [typed_net(RogueNetConfig(d_model=16, backend=backend)) for backend in ("fused", "reference")]
    batch = typed_batch(20, 6)
    optimizer = torch.optim.AdamW(nets[0].parameters(), lr=0.1, fused=True)
    before = nets[0].act(batch, greedy=True).values
    for parameter in nets[0].parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    nets[1].load_state_dict(nets[0].state_dict())
    found, expected = (net.act(batch, greedy=True).values for net in nets)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, before, atol=1e-2)


@pytest.mark.parametrize("way", ["loaded", "assigned", "in place", "other memory", "made in inference mode"])
def test_acting_sees_weights_that_were_replaced(way: str) -> None:
    torch.manual_seed(7)
    batch = typed_batch(20, 6)
    with torch.inference_mode() if way == "made in inference mode" else torch.no_grad():
        net, other = (typed_net(RogueNetConfig(d_model=16)) for _ in range(2))
        other.value_head.project.bias.fill_(2.0)
        net.act(batch, greedy=True)
        if way in ("loaded", "assigned"):
            net.load_state_dict(other.state_dict(), assign=way == "assigned")
        elif way == "other memory":
            weights = torch.nn.utils.parameters_to_vector(other.parameters())
            torch.nn.utils.vector_to_parameters(weights, net.parameters())
        else:
            for own, new in zip(net.parameters(), other.parameters(), strict=True):
                own.copy_(new)
        assert torch.equal(net.act(batch, greedy=True).values, other.act(batch, greedy=True).values)


def test_a_copied_and_a_pickled_network_act_by_themselves() -> None:
    torch.manual_seed(8)
    net = typed_net(RogueNetConfig(d_model=16))
    batch = typed_batch(20, 7)
    expected = net.act(batch, greedy=True).values
    copies = [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    for each in copies:
        torch.testing.assert_close(each.act(batch, greedy=True).values, expected)
    assert not net.act(batch, greedy=True).values.any()


def model_of(net: RogueNet, value_net: RogueNet | None = None) -> ActorCritic:
    return ActorCritic(net, value_net)


def gradients_of_modules(model: ActorCritic, given: Samples, ppo: PPOSettings) -> tuple[dict[str, torch.Tensor], Any]:
    """The gradient of every parameter that has one, by the reference modules, and the statistics."""
    model.zero_grad(set_to_none=True)
    loss, stats = ppo_loss(model, given.weighed(ppo), ppo)
    loss.backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}, stats


def compiled_step(
    model: ActorCritic, given: Samples, ppo: PPOSettings, lr: float = 0.0
) -> tuple[dict[str, torch.Tensor], Any]:
    """Do the same by the compiled step: Adam's first moments after one step are a tenth of the gradient."""
    groups = [{"params": list(net.parameters())} for net in (model.policy, model.value_net) if net is not None]
    optimizer = AdamW(groups, lr=lr, weight_decay=0.0)
    learning = CompiledPPO(model, optimizer)
    with learning.holding(given, len(given)) as frames:
        columns = weigh(frames, [frames.frames], [len(frames)], ppo)[0]
        stats = learning.learn(replace(frames, **columns), OptimConfig(max_grad_norm=1e9), ppo)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(each)]: state["exp_avg"] * 10 for each, state in optimizer.state.items()}, stats


def assert_same_gradients(model: ActorCritic, given: Samples, ppo: PPOConfig) -> None:
    at = PPOSettings.at(ppo)
    expected, stats = gradients_of_modules(model, given, at)
    found, logged = compiled_step(model, given, at)
    assert set(found) == set(expected)
    largest = max(float(each.abs().max()) for each in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5 * max(1.0, largest), rtol=1e-5, msg=name)
    for name, number in stats.items():
        torch.testing.assert_close(logged[name], number.detach(), atol=1e-5, rtol=1e-5, msg=name)


@given(st.data(), worlds, ppo_settings)
@settings(max_examples=25, deadline=None)
def test_gradients_and_statistics_are_those_of_the_modules(data: Any, world: World, ppo: PPOConfig) -> None:
    batch = to_batch(data.draw(batches(world, max_size=6)), world)
    net = make_net(world, n_layer=data.draw(st.integers(0, 2)), backend="fused")
    given = samples(net, batch)
    assert_same_gradients(model_of(net), given, ppo)


@pytest.mark.parametrize("d_model, n_head, n_layer", [(8, 1, 1), (24, 3, 2), (32, 2, 2), (64, 4, 1)])
def test_typed_features_and_nobody_at_all_widths(d_model: int, n_head: int, n_layer: int) -> None:
    torch.manual_seed(0)
    config = RogueNetConfig(d_model=d_model, n_head=n_head, n_layer=n_layer, d_qk=12, backend="fused")
    net = typed_net(config)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    batch = typed_batch(70, 1)
    net.update_normalization(batch)
    assert_same_gradients(model_of(net), samples(net, batch), PPOConfig())


@pytest.mark.parametrize("ratio", ["per_actor", "joint"])
def test_a_separate_value_network_and_a_scaled_head(ratio: Any) -> None:
    torch.manual_seed(1)
    batch = typed_batch(40, 2)
    config = RogueNetConfig(d_model=16, n_layer=1, backend="fused")
    net, value_net = (typed_net(config) for _ in range(2))
    with torch.no_grad():
        for parameter in (*net.parameters(), *value_net.parameters()):
            parameter.add_(torch.randn_like(parameter) * 0.1)
    value_net.value_head.rescale(torch.tensor(3.0), torch.tensor(20.0))
    assert_same_gradients(model_of(net, value_net), samples(net, batch), PPOConfig(ratio=ratio))
    net.value_head.rescale(torch.tensor(-1.0), torch.tensor(0.1))
    assert_same_gradients(model_of(net), samples(net, batch), PPOConfig())


def learned(
    model: ActorCritic, given: Samples, *, compiled: bool, steps: int, threads: int = 1, saved: Any = None
) -> dict[str, Any]:
    """Parameters after some optimizer steps, which go on from the state `saved`, and what was logged."""
    groups = [{"params": list(model.policy.parameters()), "weight_decay": 0.1}]
    optimizer = AdamW(groups, lr=1e-3, eps=1e-5, fused=True)
    if saved is not None:
        optimizer.load_state_dict(copy.deepcopy(saved))
    optim = OptimConfig(batch_size=16, epochs=max(1, steps // 4))
    generator = torch.Generator().manual_seed(5)
    ppo = PPOSettings.at(PPOConfig())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        if compiled:
            learning = CompiledPPO(model, optimizer)
            with learning.holding(given, len(given)) as frames:
                learn = partial(learning.learn, optim=optim, settings=ppo)
                stats = update(model, optimizer, frames, optim, ppo, generator=generator, optimizer_step=learn)
        else:
            stats = update(model, optimizer, given, optim, ppo, generator=generator)
    finally:
        torch.set_num_threads(before)
    return {"stats": stats, "parameters": dict(model.state_dict()), "optimizer": optimizer.state_dict()}


def typed_case(frames: int = 64) -> tuple[ActorCritic, Samples]:
    torch.manual_seed(3)
    net = typed_net(RogueNetConfig(d_model=16, n_layer=2, backend="fused"))
    batch = typed_batch(frames, 3)
    net.update_normalization(batch)
    return model_of(net), samples(net, batch)


def test_a_hundred_optimizer_steps_learn_the_same() -> None:
    model, given = typed_case()
    expected = learned(copy.deepcopy(model), given, compiled=False, steps=100)
    found = learned(model, given, compiled=True, steps=100)
    for name, parameter in expected["parameters"].items():
        torch.testing.assert_close(found["parameters"][name], parameter, atol=1e-4, rtol=1e-4, msg=name)
    assert found["stats"] == pytest.approx(expected["stats"], abs=1e-4, rel=1e-3)


def both_nets() -> list[RogueNet]:
    """Make the same network with kernels and without."""
    return [backends.make_net(backends.make_config(backend=name)) for name in ("fused", "reference")]


def crowds(*counts: int) -> ObsBatch:
    """Frames of so many entities, that all act."""
    return Scene([(count, 0, 0) for count in counts], 9, acting="all").batch


def assert_acts_alike(nets: Sequence[RogueNet], batch: ObsBatch, keys: torch.Tensor | None) -> None:
    generator = None if keys is None else FrameKeys(keys)
    found, expected = (net.act(batch, greedy=keys is None, generator=generator) for net in nets)
    torch.testing.assert_close(found.values, expected.values, atol=1e-5, rtol=1e-5)
    for name, log_probs in expected.log_probs.items():
        same = torch.isclose(found.actions[name].values, expected.actions[name].values, atol=1e-4, rtol=1e-4)
        assert same.float().mean() > 0.999
        torch.testing.assert_close(found.log_probs[name].values.mean(), log_probs.values.mean(), atol=1e-3, rtol=1e-3)


def test_keys_may_be_strided_and_must_be_one_for_each_frame() -> None:
    nets, batch = both_nets(), crowds(*[3] * 50)
    assert_acts_alike(nets, batch, keyed(3, torch.arange(100))[::2])
    with pytest.raises(ValueError, match="keys must have shape"):
        nets[0].act(batch, generator=FrameKeys(keyed(3, torch.arange(49))))


def test_a_program_made_in_inference_mode_works_outside_it() -> None:
    nets, batch = both_nets(), crowds(*[3] * 4)
    with torch.inference_mode():
        nets[0].act(batch, greedy=True)
    for net in nets:
        with torch.no_grad():
            net.value_head.project.bias.fill_(2.0)
    assert_acts_alike(nets, batch, None)


def test_batches_that_would_index_beyond_their_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net, batch = both_nets()[0], crowds(*[3] * 4)
    net.act(batch, greedy=True)
    monkeypatch.setattr(columns, "prepare", None)  # which writes inputs: nothing is written before all is checked
    actors = batch.action_masks[MOVE].actors
    actors.values[1, 0] = 3
    with pytest.raises(ValueError, match="index 3 in a frame of 3 entities"):
        net.act(batch, greedy=True)
    actors.values[1, 0] = 1
    rows, offsets = batch.features[SHIP]
    batch.features[SHIP] = RaggedTensor(rows[:-1], offsets)
    with pytest.raises(ValueError, match="'Ship': its offsets do not fit its rows"):
        net.act(batch, greedy=True)
    batch.features[SHIP] = RaggedTensor(rows.double(), offsets)
    with pytest.raises(ValueError, match="must be torch.float32"):
        net.act(batch, greedy=True)


def test_parameters_that_a_resumed_run_has_gained_make_steps_of_their_own() -> None:
    model, given = typed_case()
    saved = learned(model, given, compiled=False, steps=8)["optimizer"]
    for number in (0, 3):
        saved["state"].pop(number)
    both = [learned(copy.deepcopy(model), given, compiled=compiled, steps=8, saved=saved) for compiled in (False, True)]
    expected, found = both
    steps = {number: float(state["step"]) for number, state in found["optimizer"]["state"].items()}
    assert steps == {number: 8.0 if number in (0, 3) else 16.0 for number in steps}
    for name, parameter in expected["parameters"].items():
        torch.testing.assert_close(found["parameters"][name], parameter, atol=1e-5, rtol=1e-4, msg=name)
    for number, state in expected["optimizer"]["state"].items():
        torch.testing.assert_close(found["optimizer"]["state"][number]["exp_avg_sq"], state["exp_avg_sq"])


def test_what_was_acted_by_the_same_weights_has_a_log_ratio_of_exactly_0() -> None:
    torch.manual_seed(11)
    net = typed_net(RogueNetConfig(d_model=32))
    batch = typed_batch(300, 8)
    acted = net.act(batch, generator=FrameKeys(keyed(3, torch.arange(300))))
    nothing = torch.zeros(300)
    given = samples_of(batch, acted.actions, acted.log_probs, acted.values, advantages=nothing, returns=nothing)
    order = torch.randperm(300)
    _, stats = compiled_step(model_of(net), given.gather(order), PPOSettings.at(PPOConfig()))
    assert float(stats["approx_kl"]) == 0.0 and float(stats["clip_fraction"]) == 0.0


def test_a_frame_larger_than_a_tile() -> None:
    net, batch = both_nets()[0], crowds(1, 300, 0, 2, 140, 0)
    assert_same_gradients(model_of(net), samples(net, batch), PPOConfig())


@pytest.mark.parametrize("name", ["like", "visit"])
def test_sets_that_were_not_on_offer_are_refused(name: str) -> None:
    model, given = typed_case(frames=8)
    given.actions[name].values[0] = 2 if name == "like" else 9
    learning = CompiledPPO(model, AdamW([{"params": list(model.policy.parameters())}], lr=0.0))
    with pytest.raises(ValueError, match=f"action '{name}' is .*, a number for each actee; expected"):
        with learning.holding(given, len(given)):
            pass


def test_values_that_are_one_expanded_number_are_read_as_such() -> None:
    model, given = typed_case()
    same = replace(given, values=torch.tensor(0.5).expand(len(given)))
    assert_same_gradients(model, same, PPOConfig())
