// Twin of multi_snake.py: from the same state, actions and random numbers the same observation, reward and end.

const MOVES = [[0, 1], [0, -1], [-1, 0], [1, 0]]; // up, down, left, right

export class World {
  constructor(values) {
    this.values = values; // parameters of the world in Python
    this.state = null; // of JSON; a copy of it is a saved game
  }

  /** How many policies play; with several, `seen` has what each of them sees. */
  get players() {
    return this.values.num_players;
  }

  /** What a person plays at first: the first player's snakes, or of one player the first snake, if there are others. */
  get yours() {
    const { num_snakes: count, num_players: players } = this.values;
    const own = players > 1 ? count / players : Number(count > 1);
    return Array.from({ length: own }, (_, i) => `SnakeHead ${i}`);
  }

  /** Start an episode. `random.int(n)` draws a whole number from 0 to n - 1. */
  reset(random) {
    const { num_snakes: count } = this.values;
    this.state = { steps: 0, snakes: Array.from({ length: count }, () => []), food: Array(count).fill(null) };
    for (let i = 0; i < count; i += 1) {
      this.state.snakes[i] = [this.#freeCell(random)]; // from tail to head
      this.state.food[i] = this.#freeCell(random);
    }
  }

  /** Take actions, in the form of docs/protocol.md. Returns the reward, and whether the episode ends, or was cut. */
  step({ move }, random) {
    const { state, values } = this;
    const { num_snakes: count, num_players: players, max_snake_length: full } = values;
    state.steps += 1;
    let reward = 0;
    let died = false;
    for (let i = 0; i < count; i += 1) {
      const snake = state.snakes[i];
      const by = MOVES[move.choices[move.actors.indexOf(`SnakeHead ${i}`)]];
      const cell = snake.at(-1).map((at, axis) => at + by[axis]);
      if (this.#isDeadly(i, cell)) {
        died = true;
        continue;
      }
      const eats = isAt(state.food[i], cell);
      if (eats) state.food[i] = null;
      if (eats && snake.length < full) reward += 1 / (full - 1) / count;
      else snake.shift();
      snake.push(cell);
    }
    state.food.forEach((food, i) => (state.food[i] = food ?? this.#freeCell(random)));
    const share = count / players;
    const isFull = (player) => state.snakes.slice(player * share, (player + 1) * share).every(({ length }) => length >= full);
    const done = died || [...Array(players).keys()].some(isFull);
    const truncated = !done && state.steps === values.max_steps;
    return { reward, done: done || truncated, truncated };
  }

  /** What is shown, in the form of docs/protocol.md. */
  observe() {
    const { snakes, food, steps } = this.state;
    const features = {
      SnakeHead: snakes.map((snake, i) => [...snake.at(-1), i]),
      SnakeBody: snakes.flatMap((snake, i) => snake.slice(0, -1).map((cell) => [...cell, i])),
      Food: food.map((cell, i) => [...cell, i]),
    };
    const named = ([type, rows]) => [type, rows.map((_, k) => `${type} ${k}`)];
    const ids = Object.fromEntries(Object.entries(features).map(named));
    return { features, ids, actions: { move: { actor_ids: ids.SnakeHead } }, global_features: [steps] };
  }

  /** What the policy of a player sees: its own colours come first, and its own snakes act. */
  seen(player) {
    const { num_snakes: count, num_players: players } = this.values;
    const shown = this.observe();
    const own = player * (count / players);
    for (const rows of Object.values(shown.features)) for (const row of rows) row[2] = (row[2] - own + count) % count;
    shown.actions.move.actor_ids = shown.ids.SnakeHead.slice(own, own + count / players);
    return shown;
  }

  #isDeadly(snake, cell) {
    const { snakes, food } = this.state;
    const isOff = cell.some((at) => at < 0 || at >= this.values.board_size);
    return isOff || snakes.flat().some((each) => isAt(each, cell)) || food.some((each, i) => i !== snake && isAt(each, cell));
  }

  /** The cell of a drawn rank among those without segment and food. */
  #freeCell(random) {
    const { state, values } = this;
    const size = values.board_size;
    const taken = new Set([...state.snakes.flat(), ...state.food.filter(Boolean)].map(([x, y]) => y * size + x));
    let rank = random.int(size * size - taken.size);
    for (let cell = 0; ; cell += 1) {
      if (taken.has(cell)) continue;
      if (rank === 0) return [cell % size, Math.floor(cell / size)];
      rank -= 1;
    }
  }
}

const isAt = (place, [x, y]) => place !== null && place[0] === x && place[1] === y;
