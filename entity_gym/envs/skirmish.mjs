// Twin of skirmish.py for two players (opponent=0): from the same state, actions and random numbers the same observation,
// rewards and end, but for the rounding of sines and cosines.

const HEALER = 2;
const HEALTH = [10, 6, 6]; // by kind: melee, ranged, healer
const SPEED = [1, 0.8, 0.8];
const REACH = [1, 5, 4];
const POWER = [2, 2, 1.5];
const PERIOD = [2, 3, 3];
const SPACING = 0.5; // distance below which units push each other apart
const [GAP, SMALLEST, LARGEST] = [1, 0.6, 1.6]; // around obstacles, and their radius
const [START, ARRIVED] = [3, 2]; // distance of an army from the edge, and at which a lead is followed up
const TEAM = 4;
const DIRECTIONS = [[0, 0], ...Array.from({ length: 8 }, (_, k) => [Math.cos((k * Math.PI) / 4), Math.sin((k * Math.PI) / 4)])];
const { sqrt } = Math;

export class World {
  constructor(values) {
    if (values.opponent !== 0) throw new Error(`opponent=${values.opponent}: scripts have no twin, and play needs opponent=0`);
    this.values = values; // parameters of the world in Python
    this.state = null; // of JSON; a copy of it is a saved game
  }

  /** How many policies play; `seen` has what each of them sees. */
  get players() {
    return 2;
  }

  /** What a person plays at first: army 0. */
  get yours() {
    return this.state.units.filter(({ army }) => army === 0).map(nameOf);
  }

  /** Start an episode. `random.int(n)` draws a whole number from 0 to n - 1, `random.float()` a number from 0 to below 1. */
  reset(random) {
    this.state = { steps: 0, units: [], obstacles: [], leads: [], startHealth: 0, ahead: 0 };
    this.#placeObstacles(random);
    this.#placeArmies(random);
    this.#followLeads(random);
  }

  /** Take actions, in the form of docs/protocol.md. Returns the rewards, and whether the episode ends, or was cut. */
  step({ Move: move, Steer: steer, Target: target }, random) {
    const { state, values } = this;
    const { units } = state;
    state.steps += 1;
    const rowOf = new Map((steer ?? move).actors.map((id, k) => [id, k]));
    const headings = units.map((unit) => {
      const row = rowOf.get(nameOf(unit));
      if (!steer) return [...DIRECTIONS[move.choices[row]]];
      const [dx, dy] = steer.values[row];
      const length = Math.max(sqrt(dx * dx + dy * dy), 1);
      return [dx / length, dy / length];
    });
    const places = new Map(units.map((unit, i) => [nameOf(unit), i]));
    const aims = units.map(() => null);
    target?.actors.forEach((id, k) => (aims[places.get(id)] = places.get(target.actees[k])));
    this.#fight(headings, aims);
    const isAlive = units.map(({ health }) => health > 0);
    state.units = units.filter((_, i) => isAlive[i]);
    this.#march(headings.filter((_, i) => isAlive[i]));
    this.#followLeads(random);
    return this.#score(values.max_steps);
  }

  /** What all players together see, in the form of docs/protocol.md. */
  observe() {
    const { units, obstacles, leads } = this.state;
    const spotted = this.#spotted();
    const features = {
      Unit: units.map(({ x, y, health, cooldown, army, kind }, i) => [x, y, health, cooldown, army, Number(spotted[i]), kind]),
      Obstacle: obstacles.map((obstacle) => [...obstacle]),
      Lead: leads.map(([x, y], army) => [x, y, army]),
    };
    const names = (type) => features[type].map((_, k) => `${type} ${k}`);
    const ids = { Unit: units.map(nameOf), Obstacle: names("Obstacle"), Lead: names("Lead") };
    return { features, ids, actions: this.#offers(units) };
  }

  /** What the policy of a player sees: its own army as team 0, no enemy who is not spotted, and its own lead alone. */
  seen(player) {
    const shown = this.observe();
    const { Unit: units, Lead: leads } = shown.features;
    units.forEach((row) => (row[TEAM] = Number(row[TEAM] !== player)));
    leads.forEach((row) => (row[2] = Number(row[2] !== player)));
    shown.visible = { Unit: units.map((row) => row[TEAM] === 0 || row[5] === 1), Lead: leads.map((row) => row[2] === 0) };
    shown.actions = this.#offers(this.state.units.filter(({ army }) => army === player));
    return shown;
  }

  #offers(units) {
    const offers = { [this.values.continuous ? "Steer" : "Move"]: { actor_ids: units.map(nameOf) } };
    const canFire = (unit) => this.state.units.map((other) => unit.cooldown === 0 && this.#canFire(unit, other));
    const masks = units.map(canFire);
    const ready = masks.filter((mask) => mask.includes(true));
    if (ready.length) {
      const actors = units.filter((_, k) => masks[k].includes(true));
      offers.Target = { actor_ids: actors.map(nameOf), actee_ids: this.state.units.map(nameOf), mask: ready };
    }
    return offers;
  }

  // ---- The start

  #placeObstacles(random) {
    const { obstacles } = this.state;
    for (let pair = 0; pair < this.values.num_obstacles / 2; pair += 1) {
      const radius = SMALLEST + (LARGEST - SMALLEST) * random.float();
      const room = this.values.width / 2 - radius - GAP;
      const [x, y] = [0, 0].map(() => (2 * random.float() - 1) * room);
      const isFree = obstacles.every(([ox, oy, other]) => distance(x, y, ox, oy) >= radius + other + GAP);
      if (isFree && 2 * sqrt(x * x + y * y) >= 2 * radius + GAP) obstacles.push([x, y, radius], [-x, -y, radius]);
    }
  }

  #placeArmies(random) {
    const { state, values } = this;
    const angle = 2 * Math.PI * random.float();
    const away = values.width / 2 - START;
    const spread = 0.5 + 0.5 * sqrt(values.num_units);
    const drawKind = () => [0, 0, 1, 1, HEALER][random.int(5)];
    for (let i = 0; i < values.num_units; i += 1) {
      let kind = i < 3 && values.num_units >= 3 ? i : drawKind();
      const hasFighters = state.units.some((unit) => unit.kind !== HEALER);
      if (i === values.num_units - 1 && !hasFighters) kind = random.int(2);
      const turn = 2 * Math.PI * random.float();
      const radius = spread * sqrt(random.float());
      const x = away * Math.cos(angle) + radius * Math.cos(turn);
      const y = away * Math.sin(angle) + radius * Math.sin(turn);
      const unit = { army: 0, id: i, kind, x, y, health: HEALTH[kind], cooldown: 0 };
      this.#land(unit);
      state.units.push(unit);
    }
    const image = (unit) => ({ ...unit, army: 1, id: unit.id + values.num_units, x: -unit.x, y: -unit.y });
    state.units.push(...state.units.map(image));
    state.startHealth = this.#total(0);
    state.leads = [values.num_units, 0].map((enemy) => [state.units[enemy].x, state.units[enemy].y]);
  }

  // ---- Who sees whom

  #sees(one, other, reach) {
    const [dx, dy] = [one.x - other.x, one.y - other.y];
    return dx * dx + dy * dy <= reach * reach && !this.#isBetween(one, other);
  }

  /** Whether the line between two units touches the inside of an obstacle. */
  #isBetween(one, other) {
    const [dx, dy] = [other.x - one.x, other.y - one.y];
    const length2 = dx * dx + dy * dy;
    return this.state.obstacles.some(([x, y, radius]) => {
      const [toX, toY] = [x - one.x, y - one.y];
      const along = toX * dx + toY * dy;
      const across = toX * dy - toY * dx;
      let nearest2 = (across * across) / length2;
      if (along <= 0) nearest2 = toX * toX + toY * toY;
      else if (along >= length2) nearest2 = (toX - dx) * (toX - dx) + (toY - dy) * (toY - dy);
      return nearest2 < radius * radius * (1 - 1e-9);
    });
  }

  #spotted() {
    const { units } = this.state;
    return units.map((one) => units.some((other) => {
      const [first, second] = one.army === 0 ? [one, other] : [other, one];
      return one.army !== other.army && this.#sees(first, second, this.values.sight);
    }));
  }

  #canFire(one, other) {
    const areFriends = one.army === other.army;
    if (one.kind !== HEALER) return !areFriends && this.#sees(one, other, REACH[one.kind]);
    const isHurt = other.health < HEALTH[other.kind];
    return areFriends && one !== other && isHurt && this.#sees(one, other, REACH[HEALER]);
  }

  /** Each army looks for the enemy where it sees one or has last seen one; where nobody is, at a drawn place. */
  #followLeads(random) {
    const { units, leads } = this.state;
    const spotted = this.#spotted();
    for (const army of [0, 1]) {
      const seen = units.find((unit, i) => unit.army !== army && spotted[i]);
      const [x, y] = leads[army];
      const hasArrived = units.some((unit) => unit.army === army && distance(unit.x, unit.y, x, y) < ARRIVED);
      if (seen) leads[army] = [seen.x, seen.y];
      else if (hasArrived) leads[army] = [0, 0].map(() => (random.float() - 0.5) * this.values.width);
    }
  }

  // ---- A step

  /** Units fire at their aims, healers first, and stand still; what is not needed any more is not fired. */
  #fight(headings, aims) {
    const { units } = this.state;
    const [given, taken] = [units.map(() => 0), units.map(() => 0)];
    const fire = (i) => {
      units[i].cooldown = PERIOD[units[i].kind] - 1;
      headings[i] = [0, 0];
    };
    units.forEach((unit, i) => {
      const target = aims[i];
      if (target !== null && unit.kind === HEALER && units[target].health + given[target] < HEALTH[units[target].kind]) {
        given[target] += POWER[HEALER];
        fire(i);
      } else {
        unit.cooldown = Math.max(unit.cooldown - 1, 0);
      }
    });
    units.forEach((unit, i) => (unit.health = Math.min(unit.health + given[i], HEALTH[unit.kind])));
    units.forEach((unit, i) => {
      const target = aims[i];
      if (target === null || unit.kind === HEALER || taken[target] >= units[target].health) return;
      taken[target] += POWER[unit.kind];
      fire(i);
    });
    units.forEach((unit, i) => (unit.health -= taken[i]));
  }

  #march(headings) {
    const { units } = this.state;
    units.forEach((unit, i) => {
      unit.x += SPEED[unit.kind] * headings[i][0];
      unit.y += SPEED[unit.kind] * headings[i][1];
    });
    const pushes = units.map(() => [0, 0]);
    units.forEach((one, i) => {
      for (let j = i + 1; j < units.length; j += 1) {
        const [dx, dy] = [one.x - units[j].x, one.y - units[j].y];
        const length2 = dx * dx + dy * dy;
        if (length2 >= SPACING * SPACING) continue;
        const length = sqrt(length2);
        const share = (SPACING - length) / 2;
        const push = length > 1e-9 ? [(share * dx) / length, (share * dy) / length] : [share, 0];
        push.forEach((by, axis) => {
          pushes[i][axis] += by;
          pushes[j][axis] -= by;
        });
      }
    });
    units.forEach((unit, i) => {
      unit.x += pushes[i][0];
      unit.y += pushes[i][1];
      this.#land(unit);
    });
  }

  /** Bring a unit back onto the field, and out of obstacles. */
  #land(unit) {
    const half = this.values.width / 2;
    unit.x = Math.min(Math.max(unit.x, -half), half);
    unit.y = Math.min(Math.max(unit.y, -half), half);
    for (const [x, y, radius] of this.state.obstacles) {
      const [dx, dy] = [unit.x - x, unit.y - y];
      const length2 = dx * dx + dy * dy;
      if (length2 >= radius * radius) continue;
      const length = sqrt(length2);
      unit.x = x + (length > 1e-9 ? (radius * dx) / length : radius);
      unit.y = y + (length > 1e-9 ? (radius * dy) / length : 0);
    }
  }

  // ---- The score

  #score(mostSteps) {
    const { state } = this;
    const [own, enemies] = [0, 1].map((army) => state.units.filter((unit) => unit.army === army));
    const health = (this.#total(0) - this.#total(1)) / state.startHealth;
    const ahead = 0.5 * health + (0.5 * (own.length - enemies.length)) / this.values.num_units;
    const [stands, opposes] = [own, enemies].map((army) => army.some(({ kind }) => kind !== HEALER));
    const over = !(stands && opposes);
    const reward = ahead - state.ahead + (over ? Number(stands) - Number(opposes) : 0);
    state.ahead = ahead;
    const truncated = !over && state.steps === mostSteps;
    return { reward: 0, rewards: [reward, -reward], done: over || truncated, truncated };
  }

  #total(army) {
    return this.state.units.reduce((all, unit) => (unit.army === army ? all + unit.health : all), 0);
  }
}

const nameOf = ({ id }) => `Unit ${id}`;
const distance = (x0, y0, x1, y1) => sqrt((x0 - x1) * (x0 - x1) + (y0 - y1) * (y0 - y1));
