// Plays the orchard as a policy server says, several games at a time, and prints the mean reward of an episode.
//
//   python -m enn_ppo.serve checkpoint=outputs/orchard port=5577
//   node clients/javascript/examples/play_orchard.mjs 5577 50

import { connectPolicy } from "../entity_gym.mjs";
import { Orchard, spaces } from "./orchard.mjs";

const [port, episodes = 50] = process.argv.slice(2).map(Number);
if (!(port > 0 && episodes > 0)) fail("usage: node play_orchard.mjs PORT [EPISODES]");
const policy = await connectPolicy({ port, spaces }).catch((error) => fail(`port ${port}: ${error.message}`));

function fail(reason) {
  console.error(reason);
  process.exit(2);
}

// Games share a connection. A policy that remembers needs one for each game, and { begins: true } where an episode begins.
async function play(seed) {
  const world = new Orchard();
  let observation = world.reset(seed);
  let reward = 0;
  while (!observation.done) {
    const { actions } = await policy.act(observation, { greedy: true });
    observation = world.act(actions);
    reward += observation.reward;
  }
  return reward;
}

const rewards = await Promise.all(Array.from({ length: episodes }, (_, episode) => play(1000 + episode)));
policy.close();
const mean = rewards.reduce((sum, reward) => sum + reward, 0) / episodes;
console.log(`mean reward of ${episodes} episodes: ${mean}`);
