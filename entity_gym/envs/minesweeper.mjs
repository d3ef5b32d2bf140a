// Twin of minesweeper.py: from the same state, actions and random numbers the same observation, reward and end.

const MOVES = [[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]];
const DEFUSE = 4;

export class World {
  constructor(values) {
    this.values = values; // parameters of the world in Python
    this.state = null; // of JSON; a copy of it is a saved game
  }

  /** Start an episode. `random.int(n)` draws a whole number from 0 to n - 1. */
  reset(random) {
    const { width, height, num_mines: mines, num_robots: robots, cooldown_period: cooldown } = this.values;
    const taken = []; // ascending
    const draw = () => {
      let cell = random.int(width * height - taken.length);
      for (const each of taken) if (each <= cell) cell += 1;
      taken.push(cell);
      taken.sort((a, b) => a - b);
      return [cell % width, Math.floor(cell / width)];
    };
    const places = Array.from({ length: mines + robots }, draw);
    this.state = { steps: 0, mines: places.slice(0, mines), robots: places.slice(mines), cooldown };
  }

  /** Take actions, in the form of docs/protocol.md. Returns the reward, and whether the episode ends, or was cut. */
  step({ Move: move, "Fire Orbital Cannon": fire }) {
    const { state, values } = this;
    const choices = new Map(move?.actors.map((id, k) => [id, move.choices[k]]));
    state.steps += 1;
    state.cooldown = Math.max(state.cooldown - 1, 0);
    const [type, row] = fire?.actees.length ? fire.actees[0].split(" ") : [];
    if (type) state.cooldown = values.cooldown_period;
    if (type === "Mine") state.mines.splice(Number(row), 1);
    const shot = type === "Robot" ? state.robots[Number(row)] : null;
    state.robots.forEach((robot, k) => {
      if (robot === shot) return;
      const choice = choices.get(`Robot ${k}`);
      MOVES[choice].forEach((by, axis) => (robot[axis] += by));
      const isFar = ([x, y]) => Math.abs(x - robot[0]) + Math.abs(y - robot[1]) > 1;
      if (choice === DEFUSE) state.mines = state.mines.filter(isFar);
    });
    state.robots = state.robots.filter((robot) => robot !== shot && !isAt(state.mines, robot));
    const won = state.mines.length === 0;
    const done = won || state.robots.length === 0;
    const truncated = !done && state.steps === values.max_steps;
    return { reward: Number(won), done: done || truncated, truncated };
  }

  /** What is shown, in the form of docs/protocol.md. */
  observe() {
    const { mines, robots, cooldown } = this.state;
    const { width, height, orbital_cannon: hasCannon } = this.values;
    const cannons = hasCannon ? [[cooldown]] : [];
    const names = (type, rows) => rows.map((_, k) => `${type} ${k}`);
    const ids = { Mine: names("Mine", mines), Robot: names("Robot", robots), "Orbital Cannon": names("Orbital Cannon", cannons) };
    const actions = {};
    if (robots.length) {
      const mask = robots.map(([x, y]) => [x < width - 1, x > 0, y < height - 1, y > 0, true]);
      actions.Move = { actor_ids: ids.Robot, mask };
    }
    if (hasCannon && cooldown === 0) {
      actions["Fire Orbital Cannon"] = { actor_ids: ids["Orbital Cannon"], actee_ids: [...ids.Mine, ...ids.Robot] };
    }
    const [Mine, Robot] = [mines, robots].map((cells) => cells.map((cell) => [...cell])); // the state will change
    return { features: { Mine, Robot, "Orbital Cannon": cannons }, ids, actions };
  }

  /** Rearrange the board: move entity `row` of a type to a free cell; without a row add one, without a cell remove it. */
  change(type, row, cell) {
    const { state, values } = this;
    const list = { Mine: state.mines, Robot: state.robots }[type];
    const isFree = (place) => place.every((at, axis) => at >= 0 && at < [values.width, values.height][axis]);
    if (!list || (cell && (!isFree(cell) || isAt([...state.mines, ...state.robots], cell)))) return false;
    if (row === null ? list.length >= { Mine: 64, Robot: 16 }[type] : !cell && list.length === 1) return false;
    list.splice(row ?? list.length, row === null ? 0 : 1, ...(cell ? [cell] : []));
    return true;
  }
}

const isAt = (places, [x, y]) => places.some((place) => place[0] === x && place[1] === y);
