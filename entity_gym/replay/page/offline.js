// ---- A game without a server. The world's twin (entity_gym/envs/*.mjs) and the policy stand in the page, in scripts of their
// own, which leave their classes in `window.offline`. Whom the person does not take over, the policy plays.

const RANDOM = { int: (n) => Math.floor(Math.random() * n), float: Math.random };

// Answers what the page posts, in the form of a game's server.
class OfflineGame {
  constructor(replay) {
    const { World, Policy } = window.offline;
    Object.assign(this, { given: replay.game, spaces: replay.actions, types: replay.order, isRearranging: false });
    this.world = new World(replay.game.values);
    this.policy = Policy.load(bytesOf(byId('policy').textContent));
    this.moments = []; // {world, memories, ended, total, episode}: states as JSON, so that nothing changes them
    this.episodes = [];
    this.mine = new Set(); // keys of the entities that the person plays
    this.next();
    for (const id of this.world.yours ?? []) this.mine.add(this.#keyOf(id));
  }

  next() {
    this.world.reset(RANDOM);
    this.episodes.push({ seed: 0, number: 0, drawing: this.given.drawing, reward: 0, length: 0, info: {}, steps: [] });
    this.#remember({ reward: 0, done: false, truncated: false }, null, 0);
    return this.#answer(1);
  }

  // Takes a step with a column, a list of numbers, or null of each actor; for null, the policy decides.
  act({ actions }) {
    const decisions = this.#steps.at(-1).views[0].actions;
    const told = {};
    for (const [action, decision] of Object.entries(decisions)) {
      decision.chosen = actions[action].map((column, row) => column ?? decision.advised[row]);
      told[action] = this.#told(action, decision.chosen);
    }
    const ended = this.world.step(told, RANDOM);
    const reward = ended.rewards?.[0] ?? ended.reward; // of several players, the person is the first
    this.#remember({ ...ended, reward }, this.memories, this.moments.at(-1).total + reward);
    return this.#answer(2);
  }

  undo() {
    if (this.moments.length === 1) return this.#answer(1);
    this.moments.pop();
    this.#steps.pop();
    if (this.#steps.length === 0) this.episodes.pop();
    return this.#again();
  }

  restart() {
    this.moments.length -= this.#steps.length - 1;
    this.#steps.length = 1;
    return this.#again();
  }

  // Rearranges the world, if it can be: see `change` of its twin.
  change({ entity, row, cell }) {
    if (!this.world.change(entity.type, row, cell)) throw new Error('Nothing can be moved there.');
    this.moments.at(-1).world = JSON.stringify(this.world.state);
    return this.#again();
  }

  get #steps() {
    return this.episodes.at(-1).steps;
  }

  #keyOf(id) {
    const type = this.types.find((each) => id.startsWith(`${each} `));
    return JSON.stringify([type, id.slice(type.length + 1)]);
  }

  #remember(ended, memories, total) {
    this.moments.push({ world: JSON.stringify(this.world.state), memories, ended, total });
    this.#steps.push(this.#step());
  }

  // Shows the last moment anew.
  #again() {
    this.world.state = JSON.parse(this.moments.at(-1).world);
    this.#steps[this.#steps.length - 1] = this.#step();
    return this.#answer(1);
  }

  #answer(numSteps) {
    const { steps, ...episode } = this.episodes.at(-1);
    Object.assign(episode, { reward: this.moments.at(-1).total, length: steps.length - 1 });
    return { episodes: this.episodes.length, steps: steps.length, episode, tail: steps.slice(-numSteps) };
  }

  // The last moment as a step of a replay (docs/replays.md). Nobody has chosen yet; what the policy would do is `advised`.
  #step() {
    const { memories, ended } = this.moments.at(-1);
    const shown = this.world.observe();
    const { players, greedy } = this.given;
    const seen = players > 1 ? Array.from({ length: players }, (_, player) => this.world.seen(player)) : [shown];
    const answers = ended.done ? [] : seen.map((each, player) => this.policy.act(each, { state: memories?.[player], greedy }));
    this.memories = answers.map((answer) => answer.state);
    const ids = this.types.flatMap((type) => shown.ids[type] ?? []);
    this.offers = ended.done ? {} : shown.actions;
    const visible = Object.entries(seen[0].visible ?? {}); // to the person, who is the first of several players
    const view = {
      features: shown.features,
      hidden: Object.fromEntries(visible.map(([type, flags]) => [type, flags.map((flag) => Number(!flag))])),
      ids: Object.fromEntries(Object.entries(shown.ids).map(([type, own]) => [type, own.map((id) => id.slice(type.length + 1))])),
      globals: shown.global_features,
      value: answers[0]?.value ?? null,
      actions: Object.fromEntries(Object.keys(this.offers).map((action) => [action, this.#decision(action, ids, seen, answers)])),
      attention: null,
    };
    return { reward: ended.reward, rewards: [ended.reward], done: ended.done, truncated: ended.truncated, views: [view] };
  }

  #decision(action, ids, seen, answers) {
    const { actor_ids: actors, actee_ids: actees, mask } = this.offers[action];
    const { nobody } = this.spaces[action];
    const decided = new Map();
    seen.forEach(({ actions: offers }, player) => {
      const { actions, probabilities } = answers[player];
      const rows = probabilities[action]?.rows ?? probabilities[action];
      offers[action]?.actor_ids.forEach((id, k) => {
        const { choices, values } = actions[action];
        const actee = actees?.indexOf(actions[action].actees[actions[action].actors.indexOf(id)]);
        const column = actees && actee < 0 && nobody ? actees.length : actee;
        decided.set(id, { probs: rows?.[k], advised: choices?.[k] ?? values?.[k] ?? column });
      });
    });
    const of = (key) => actors.map((id) => decided.get(id)[key]);
    const decision = { actors: actors.map((id) => ids.indexOf(id)), advised: of('advised'), chosen: actors.map(() => -1) };
    if (actees) decision.actees = actees.map((id) => ids.indexOf(id));
    if (mask) decision.mask = mask.map((row) => [...row, ...(nobody ? [true] : [])].map(Number));
    if (this.spaces[action].kind === 'continuous') return { ...decision, chosen: decision.advised.map((row) => row.map(() => null)) };
    const entropy = (row) => -sum(row.map((share) => (share > 0 ? share * Math.log(share) : 0)));
    return { ...decision, probs: of('probs'), entropy: of('probs').map(entropy) };
  }

  // Chosen columns in the form in which twins take actions, that of docs/protocol.md.
  #told(action, chosen) {
    const { actor_ids: actors, actee_ids: actees } = this.offers[action];
    if (this.spaces[action].kind === 'continuous') return { actors, values: chosen };
    if (!actees) return { actors, choices: chosen };
    const able = actors.map((_, k) => k).filter((k) => actees[chosen[k]] !== undefined);
    return { actors: able.map((k) => actors[k]), actees: able.map((k) => actees[chosen[k]]) };
  }
}

// Starts the game of a page that holds one, with its first episode in the replay.
function beginOffline(replay) {
  game = new OfflineGame(replay);
  replay.episodes.push({ ...game.episodes[0], steps: [...game.episodes[0].steps] });
  byId('take-over').addEventListener('click', () => guarded(takeOver));
  byId('rearrange').addEventListener('click', () => guarded(() => rearrange(!game.isRearranging)));
}

// The person plays the selected entity from now on, or leaves it to the policy.
function takeOver() {
  const key = selectedEntity()?.key;
  if (!game.mine.delete(key)) game.mine.add(key);
  redraw();
}

function rearrange(isOn) {
  game.isRearranging = isOn;
  redraw();
}

// A click on a free cell while the world is rearranged: the selected entity is moved there, or with Shift another one is added.
// Returns false where the click means something else.
function rearrangeUnder(event) {
  const entity = selectedEntity();
  if (!game.isRearranging || !isDrafting() || !entity || entitiesUnder(event).length) return false;
  const scene = sceneOf(currentEpisode(), state.player);
  const { plane, scale, x, y } = makeTransform(scene, picture.width, picture.height);
  const box = world.getBoundingClientRect();
  const across = (event.clientX - box.left - x(plane.left)) / scale;
  const down = (event.clientY - box.top - Math.min(y(plane.top), y(plane.bottom))) / scale;
  const cell = [plane.left + across, scene.yUp ? plane.bottom - down : plane.top + down].map(Math.round);
  post('change', { entity, row: event.shiftKey ? null : entity.row, cell });
  return true;
}

function removeSelected() {
  const entity = selectedEntity();
  if (game.isRearranging && isDrafting() && entity) post('change', { entity, row: entity.row, cell: null });
}

function drawOffline() {
  const entity = selectedEntity();
  const isActor = Boolean(entity && frameOf(currentView()).decisions.has(entity.number));
  byId('take-over').hidden = false;
  byId('take-over').disabled = !isDrafting() || !isActor;
  setText(byId('take-over'), game.mine.has(entity?.key) ? 'Leave it to the policy' : 'Take it over');
  byId('rearrange').hidden = !game.world.change;
  byId('rearrange').disabled = !isDrafting();
  byId('rearrange').setAttribute('aria-pressed', String(game.isRearranging));
}

function offlineText() {
  if (game.isRearranging) return 'Click a free cell to move the selected entity there; with Shift, to add one like it. Delete removes it.';
  return game.mine.size ? 'Step, or change what has been chosen.' : 'The policy plays. Step or play on, choose for somebody once, or take somebody over.';
}
