// A gatherer sees two to five fruits and picks one at a time: a ripe one is worth 1, a green one 0, a rotten one -1.
// Picking at random loses on average; there is always a ripe one, so 8 is what an episode can give.
//
//   python -m enn_ppo.train env=program 'env.kwargs.command=[node,clients/javascript/examples/orchard.mjs]'

import { pathToFileURL } from "node:url";
import { offerWorlds, seededRandom } from "../entity_gym.mjs";

const PICKS = 8;

export const spaces = {
  entities: [
    { name: "Gatherer", features: ["picks_left"] },
    { name: "Fruit", features: ["size", "ripe", "rotten"] },
  ],
  actions: [{ name: "pick", type: "SelectEntityActionSpace" }],
};

export class Orchard {
  reset(seed, { fruits } = {}) {
    this.random = seededRandom(seed);
    this.most = fruits ?? 5;
    this.picksLeft = PICKS;
    this.#grow();
    return this.#observe(0);
  }

  act({ pick }) {
    const picked = this.fruits.find((fruit) => fruit.id === pick.actees[0]);
    this.picksLeft -= 1;
    this.#grow();
    return this.#observe(picked.ripe - picked.rotten);
  }

  #grow() {
    const count = 2 + Math.floor(this.random() * (this.most - 1));
    const ripe = Math.floor(this.random() * count);
    this.fruits = Array.from({ length: count }, (_, k) => {
      const rotten = k !== ripe && this.random() < 0.6;
      return { id: `fruit ${k}`, size: this.random(), ripe: Number(k === ripe), rotten: Number(rotten) };
    });
  }

  #observe(reward) {
    const done = this.picksLeft === 0;
    return {
      features: {
        Gatherer: [[this.picksLeft]],
        Fruit: this.fruits.map(({ size, ripe, rotten }) => [size, ripe, rotten]),
      },
      ids: { Gatherer: ["gatherer"], Fruit: this.fruits.map(({ id }) => id) },
      actions: done ? {} : { pick: { actor_types: ["Gatherer"], actee_types: ["Fruit"] } },
      reward,
      done,
    };
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  await offerWorlds({ name: "Orchard", spaces, makeWorld: () => new Orchard(), parameters: ["fruits"] });
}
