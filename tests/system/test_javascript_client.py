"""The reference client for Node: worlds written in JavaScript are trained in, and played as a policy server says."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from enn_ppo.checkpoints import Checkpoint, load_checkpoint
from enn_ppo.settings.command_line.cli import run_train
from enn_ppo.train import train
from entity_gym.batch.ragged import RaggedBuffer
from entity_gym.bridges.remote import ProgramError, ProgramWorlds
from entity_gym.pools.pool import ThreadedVecEnv
from tests.enn_ppo.memory_worlds import remembering
from tests.enn_ppo.served import Running

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node 18 or newer")

CLIENT = Path(__file__).parents[2] / "clients" / "javascript"
ORCHARD = CLIENT / "examples" / "orchard.mjs"

WORLD = """
import { offerWorlds } from "%s";

const spaces = {
  entities: [{ name: "Counter", features: ["value"] }],
  actions: [{ name: "add", type: "GlobalCategoricalActionSpace", choices: ["0", "1"] }],
};

class World {
  reset(seed, info) { this.value = info.start ?? seed %% 100; return this.observe(0); }
  act(actions) { this.value += actions.add.choice; %s; return this.observe(actions.add.choice); }
  observe(reward) { return { features: { Counter: [[this.value]] }, actions: { add: {} }, reward }; }
  save() { return { value: this.value }; }
  load(state) { this.value = state.value; }
}

await offerWorlds({ name: "Counting", spaces, makeWorld: () => new World(), parameters: ["start"] });
"""


def counting(folder: Path, in_act: str = "") -> ThreadedVecEnv:
    """Two worlds of a program that does this in every step."""
    file = folder / "world.mjs"
    file.write_text(WORLD % (CLIENT / "entity_gym.mjs", in_act), encoding="utf-8")
    return ThreadedVecEnv(ProgramWorlds(command=["node", str(file)]), 2)


def add(*amounts: int) -> dict[str, RaggedBuffer[np.int64]]:
    values = np.array(amounts, dtype=np.int64)[:, None]
    return {"add": RaggedBuffer(values, np.arange(len(amounts) + 1))}


def test_a_world_in_node_offers_sets_and_is_told_them_as_lists_of_ids(tmp_path: Path) -> None:
    script = f"""
import {{ offerWorlds }} from "{CLIENT / "entity_gym.mjs"}";

const spaces = {{
  entities: [{{ name: "Packer", features: [] }}, {{ name: "Box", features: ["weight"] }}],
  actions: [{{ name: "pack", type: "SelectEntitiesActionSpace", ordered: true, max: 2 }}],
}};
const observation = {{
  features: {{ Packer: [[]], Box: [[3], [4], [5]] }},
  ids: {{ Packer: ["packer"], Box: [3, 4, 5] }},
  actions: {{ pack: {{ actor_types: ["Packer"], actee_types: ["Box"], mask: [[true, false, true]] }} }},
}};
const world = {{
  reset: () => observation,
  act: ({{ pack }}) => ({{ ...observation, reward: Number(pack.actees[0].join("")) }}),
}};
await offerWorlds({{ name: "Packing", spaces, makeWorld: () => world }});
"""
    file = tmp_path / "packing.mjs"
    file.write_text(script, encoding="utf-8")
    with ThreadedVecEnv(ProgramWorlds(command=["node", str(file)]), 1) as env:
        offsets = env.reset().action_masks["pack"].pair_offsets
        for places, packed in (([2, 0, 1], 53), ([1, 0, 0], 3), ([0, 0, 0], 0)):
            obs = env.act({"pack": RaggedBuffer(np.array(places, np.int64)[:, None], offsets)})
            assert obs.reward.tolist() == [packed]


@pytest.fixture(scope="module")
def orchard(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A policy that was trained in the orchard, by the command that its first lines name."""
    run_dir = tmp_path_factory.mktemp("orchard") / "run"
    arguments = [
        "env=program",
        f"env.kwargs.command=[node,'{ORCHARD}']",
        f"run_dir={run_dir}",
        "total_timesteps=8192",
        "rollout.num_envs=32",
        "optim.batch_size=256",
        "optim.lr=0.003@0 -> 0@1",
        "net.d_model=16",
        "net.n_layer=1",
        "device=cpu",
    ]
    assert run_train(train, arguments) == 0
    return load_checkpoint(run_dir)


def test_a_policy_is_trained_in_a_node_world_and_then_plays_it_from_node(orchard: Checkpoint) -> None:
    with Running(orchard) as server:
        play = ["node", str(CLIENT / "examples" / "play_orchard.mjs"), str(server.port), "20"]
        played = subprocess.run(play, capture_output=True, text=True, check=True, timeout=60)
    said, _, mean = played.stdout.rpartition(" ")
    assert said == "mean reward of 20 episodes:"
    assert float(mean) >= 7  # 8 is perfect, and random play loses
    assert server.served is not None
    assert server.served.decisions == 20 * 8
    assert server.served.batches < server.served.decisions  # games that go on at the same time are answered together


def test_the_player_says_in_a_line_what_it_needs_and_what_is_missing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    for arguments, said in (
        ([], "usage: node play_orchard.mjs PORT"),
        ([port, "2"], f"port {port}: connect ECONNREFUSED"),
    ):
        play = ["node", str(CLIENT / "examples" / "play_orchard.mjs"), *arguments]
        played = subprocess.run(play, capture_output=True, text=True, timeout=60)
        assert played.returncode == 2
        assert played.stderr.startswith(said) and played.stderr.count("\n") == 1


def test_what_a_world_prints_goes_to_standard_error_and_harms_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with counting(tmp_path, 'console.log("value is", this.value)') as env:
        obs = env.reset(env_info=[{"start": 3}, {"start": 5}])
        obs = env.act(add(1, 0))
        assert obs.features["Counter"].values[:, 0].tolist() == [4, 5]
        env.act(add(1, 1))
    assert "value is 4\n" in capfd.readouterr().err


def test_an_exception_in_a_world_arrives_with_its_javascript_stack(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"(?s)error of world 0: TypeError: Cannot read properties .*world\.mjs:11"):
        with counting(tmp_path, "null.x") as env:
            env.reset()
            env.act(add(0, 0))


def test_a_node_world_that_can_be_saved_continues_exactly(tmp_path: Path) -> None:
    with counting(tmp_path) as env, counting(tmp_path) as other:
        env.reset(seed=3)
        env.act(add(1, 1))
        other.load_state(env.state())
        expected, got = env.act(add(0, 1)), other.act(add(0, 1))
        assert got.features["Counter"].values.tolist() == expected.features["Counter"].values.tolist()


def test_a_client_sends_the_token_and_can_ask_how_the_server_is(orchard: Checkpoint, tmp_path: Path) -> None:
    script = f"""
import {{ connectPolicy }} from "{CLIENT / "entity_gym.mjs"}";
const port = Number(process.argv[2]);
await connectPolicy({{ port }}).catch((error) => console.log(error.message));
const policy = await connectPolicy({{ port, token: "correct horse battery staple" }});
console.log((await policy.health()).dropped);
policy.close();
"""
    file = tmp_path / "asks.mjs"
    file.write_text(script, encoding="utf-8")
    with Running(orchard, token="correct horse battery staple") as server:
        asked = subprocess.run(["node", str(file), str(server.port)], capture_output=True, text=True, timeout=60)
    assert asked.stdout.splitlines() == ["the policy server says: the token is missing or wrong", "1"]


def test_a_policy_remembers_by_connection_until_the_client_says_that_an_episode_begins(tmp_path: Path) -> None:
    train(remembering(tmp_path / "run"))
    script = f"""
import {{ connectPolicy }} from "{CLIENT / "entity_gym.mjs"}";
const port = Number(process.argv[2]);
const [one, other] = [await connectPolicy({{ port }}), await connectPolicy({{ port }})];
const observation = {{
  features: {{ Shell: [[1, 0], [0, 1]], Table: [[1]] }}, global_features: [1], ids: {{ Shell: [7, 8] }},
  actions: {{ Say: {{ actor_types: ["Shell"] }} }},
}};
const ask = async (client, options) => (await client.act(observation, {{ value: true, ...options }})).value;
const values = [];
for (const [client, options] of [[one], [one], [other], [one, {{ begins: true }}], [one], [other]]) {{
  values.push(await ask(client, options));
}}
console.log(JSON.stringify(values));
one.close();
other.close();
"""
    file = tmp_path / "asks.mjs"
    file.write_text(script, encoding="utf-8")
    with Running(load_checkpoint(tmp_path / "run")) as server:
        asked = subprocess.run(["node", str(file), str(server.port)], capture_output=True, text=True, timeout=60)
    first, second, *others = json.loads(asked.stdout)
    assert first != second and others == [first, first, second, second]
