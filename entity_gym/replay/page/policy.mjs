// Plays a policy that enn-ppo has trained, in Node 18 or a browser, from its policy file alone. No dependencies.
//   const policy = Policy.load(await readFile("snake.safetensors")); // what `python -m enn_ppo.export` wrote
//   let { actions, value, state } = policy.act(observation, { greedy: true });
//   ({ actions, value, state } = policy.act(next, { greedy: true, state })); // `state`: what the policy remembers
// docs/training.md has the file, docs/network.md the network, docs/protocol.md observations and actions. Shapes: E
// entities of the frame, C choices, n rows, D width, H heads, K width of a head or key. Rows lie end to end in float64.

const FORMAT = "8";
const GLOBAL = "__global__"; // the entity with global features and actions, the last of every frame
const ACTORS = "actors"; // in `after`: the actors of an action decide in turn
const NOBODY = -1;
const NEVER = -1e30; // the logarithm of 0, where infinity would become NaN
const [SMALLEST, LARGEST] = [2 ** -126, (2 - 2 ** -23) * 2 ** 127]; // of float32
const { abs, exp, floor, fround, hypot, log, log1p, max, min, sqrt, tanh } = Math;
const fail = (why) => {
  throw new Error(why);
};

export class Policy {
  #parts;
  constructor({ metadata, tensors }) {
    this.spaces = JSON.parse(metadata.spaces); // of the training, in the form of docs/protocol.md
    this.step = Number(metadata.step); // environment steps of the training
    const [weights, { net, value_net: critic }] = [weightsOf(tensors), JSON.parse(metadata.config)];
    const actions = this.spaces.actions.map((action) => ({ ...action, after: [action.after ?? []].flat() }));
    const [ordered, done] = [[], new Set([ACTORS])]; // each behind those in its `after`
    const isNext = ({ name, after }) => !done.has(name) && after.every((each) => done.has(each));
    for (let next; (next = actions.find(isNext)); done.add(next.name)) ordered.push(next);
    const nets = [[weights, net], ...(critic ? [[weights.of("value_net/"), critic]] : [])];
    const heads = new Map(actions.map((action, i) => [action.name, headOf(weights.of(`heads.${i}.`), action)]));
    this.#parts = { types: readTypes(this.spaces), actions: ordered, heads, nets };
  }

  /** The policy of a file, an ArrayBuffer or Uint8Array. Throws if it is damaged, of another version, or NaN. */
  static load(bytes) {
    try {
      return new Policy(readFile(bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes)));
    } catch (error) {
      return fail(`no policy can be loaded: ${error.message}; give a file that enn_ppo.export wrote, or a checkpoint`);
    }
  }

  /**
   * What to do in one observation, in the form in which worlds return it.
   *
   * @param {object} [options] `state`: that of the answer one step before, null where an episode begins; `greedy`: take
   *   the likeliest actions rather than drawn ones; `random`: returns numbers from 0 to below 1, to draw with
   * @returns {object} `actions` and `probabilities` as a policy server gives them; `logProbs`: action -> log-prob of
   *   each actor's choice, in the order of the offer; `value`: the expected return; `state`: for JSON, or null
   * @throws {Error} the observation does not fit the spaces
   */
  act(observation, { state = null, greedy = false, random = Math.random } = {}) {
    const { types, actions, nets } = this.#parts;
    const { entities, offers } = readFrame(observation, types, actions);
    const ran = nets.map((net, i) => run(...net, types, entities, state?.[i]));
    const answer = { actions: {}, logProbs: {}, value: ran.at(-1).value, probabilities: {}, state: null };
    if (ran.some(({ after }) => after)) answer.state = ran.map(({ after }) => after);
    for (const action of actions.filter(({ name }) => offers.has(name))) {
      const offer = offers.get(action.name);
      offer.made = this.#decide(action, offers, ran[0], greedy ? null : random);
      offer.choiceOf = (place) => offer.made[isGlobal(action) ? 0 : offer.actors.indexOf(place)]?.choice;
      tell(answer, action, offer, (place) => entities[place].id);
    }
    return answer;
  }

  /** The decision of each actor: its choice, the log-probability of that, and the row of probabilities. */
  #decide(action, offers, { tokens, column }, random) {
    const { actors, actees, closing } = offers.get(action.name);
    const { weights, choose, message, prepare } = this.#parts.heads.get(action.name);
    const messages = action.after.length ? this.#messages(action, offers, tokens) : null;
    const read = (place, more) => {
      if (!messages) return tokens[place];
      const both = Float64Array.of(...tokens[place], ...summed(messages[place], more));
      return summed(tokens[place], weights.linear("reader.project", rectified(weights.linear("reader.hidden", both))));
    };
    const [costs, budgets] = [action.cost, action.budget].map((name) => name && column(name));
    let before = null; // in turn: the sum of the messages of the actors before
    const taken = actees.map(() => 0); // and how many of them have selected an actee
    const given = { actees, random, taken, costs: costs && actees.map((place) => costs[place]) };
    Object.assign(given, prepare?.(actees.map((place) => read(place))));
    return actors.map((place, k) => {
      const rows = closing.map((row) => row(k, place)).filter(Boolean);
      const open = rows.length ? Array.from(rows[0], (_, c) => rows.every((row) => row[c])) : null;
      const made = choose(read(place, before), { ...given, open, budget: budgets?.[place] });
      if (!action.after.includes(ACTORS)) return made;
      before = summed(message(made.choice, tokens), before);
      if (actees.includes(made.choice)) taken[actees.indexOf(made.choice)] += 1;
      return made;
    });
  }

  /** Of each token the sum of the messages that an action reads there: those of the earlier actions' choices. */
  #messages(action, offers, tokens) {
    const sums = tokens.map((token) => new Float64Array(token.length));
    for (const earlier of action.after.filter((name) => offers.has(name))) {
      const { action: told, weights, message, selected } = this.#parts.heads.get(earlier);
      const { actors, made } = offers.get(earlier);
      made.forEach(({ choice }, k) => {
        const [said, own] = [message(choice, tokens), tokens[actors[k]]];
        if (isGlobal(action) || isGlobal(told)) return sums.forEach((to) => addTo(to, said, 1 / actors.length));
        addTo(sums[actors[k]], said);
        for (const place of selected?.(choice) ?? []) addTo(sums[place], weights.linear("told.selecting", own));
      });
    }
    return sums;
  }
}

/** The metadata, and the tensors by name, without those of the trainer. */
function readFile(bytes) {
  const length = bytes.length < 8 ? 0 : Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (!(length > 0 && length <= min(2 ** 24, bytes.length - 8))) fail("it is no safetensors file, or is cut short");
  const start = bytes.subarray(0, 8 + length);
  const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(start.subarray(8));
  const { __metadata__: metadata, ...tensors } = JSON.parse(text) ?? {};
  const format = String(metadata?.format ?? "none of enn-ppo").slice(0, 80);
  if (format !== FORMAT) fail(`it has format ${format}, and this policy.mjs reads ${FORMAT}: take that of its enn-ppo`);
  const own = new Uint8Array(bytes.length + 8 + 64 - ((bytes.length + 8) % 64)); // as SHA-256 pads it
  own.set(bytes);
  own[bytes.length] = 128;
  new DataView(own.buffer).setBigUint64(own.length - 8, BigInt(bytes.length) * 8n);
  const at = new TextDecoder("latin1").decode(start).indexOf(`"hash":"${metadata.hash}"`) + 8; // latin1: bytes
  if (at >= 8) own.fill(48, at, at + 64);
  if (sha256(own) !== metadata.hash) fail("its hash does not fit its content");
  const types = { F32: Float32Array, F64: Float64Array, I64: BigInt64Array };
  const kept = Object.entries(tensors).filter(([name, { dtype }]) => !name.startsWith("trainer/") && types[dtype]);
  const found = kept.map(([name, { dtype, data_offsets: offsets }]) => {
    const [first, last] = offsets.map((offset) => start.length + offset);
    if (!(first <= last && last <= bytes.length)) fail(`its tensor ${name} is not in it`);
    const numbers = new types[dtype](own.buffer, first, (last - first) / types[dtype].BYTES_PER_ELEMENT);
    if (dtype !== "I64" && !numbers.every(Number.isFinite)) fail(`its tensor ${name} is NaN or infinite`);
    return [name, numbers];
  });
  return { metadata, tensors: new Map(found.map(([name, numbers]) => [name, Float64Array.from(numbers, Number)])) };
}

/** The SHA-256 of padded bytes in hexadecimal digits. Source: FIPS 180-4, section 6.2. */
function sha256(bytes) {
  const primes = [];
  for (let n = 2; primes.length < 64; n += 1) if (primes.every((prime) => n % prime)) primes.push(n);
  const fraction = (x) => ((x % 1) * 2 ** 32) | 0;
  const constants = primes.map((prime) => fraction(Math.cbrt(prime)));
  const hash = Int32Array.from(primes.slice(0, 8), (prime) => fraction(sqrt(prime)));
  const [words, view] = [new Int32Array(64), new DataView(bytes.buffer)];
  const turn = (x, by) => (x >>> by) | (x << (32 - by));
  for (let start = 0; start < bytes.length; start += 64) {
    let [a, b, c, d, e, f, g, h] = hash;
    for (let i = 0; i < 64; i += 1) {
      const [x, y] = [words[(i + 49) % 64], words[(i + 62) % 64]]; // 15 and 2 before
      const mixed = (turn(x, 7) ^ turn(x, 18) ^ (x >>> 3)) + (turn(y, 17) ^ turn(y, 19) ^ (y >>> 10));
      words[i] = i < 16 ? view.getInt32(start + 4 * i) : words[i - 16] + words[i - 7] + mixed;
      const one = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + constants[i] + words[i];
      const two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((each, i) => (hash[i] += each));
  }
  return Array.from(hash, (each) => (each >>> 0).toString(16).padStart(8, "0")).join("");
}

const isGlobal = ({ type }) => type === "GlobalCategoricalActionSpace";
const isSet = ({ type }) => type === "SelectEntitiesActionSpace";
const selectsOne = ({ type }) => type === "SelectEntityActionSpace";
const selects = (action) => selectsOne(action) || isSet(action);
/** The types of entities with their own features and the global ones; last the whole frame, where that is an entity. */
function readTypes({ entities, global_features: names = [], global_kinds: globalKinds, actions }) {
  const withKinds = (features, kinds = []) =>
    features.map((name) => ({ name, type: "Number", ...kinds.find((kind) => kind.name === name) }));
  const globals = withKinds(names, globalKinds);
  const types = entities.map(({ name, features, kinds }) => ({ name, features: withKinds(features, kinds), globals }));
  if (globals.length || actions.some(isGlobal)) types.push({ name: GLOBAL, features: globals, globals: [] });
  return types.map((type, i) => ({ ...type, i }));
}

const PARTS = ["type", "env", "id", "features", "ids", "visible", "actions", "global_features", "reward", "done"];
PARTS.push("truncated", "metrics", "end_of_episode_info", "player_rewards", "targets");
const OF_MASKS = ["mask", "mask_after", "actor_ids", "actor_types", "actee_ids", "actee_types"];

function refuse(what, given, expected) {
  fail(`the observation: ${what} is ${(JSON.stringify(given) ?? String(given)).slice(0, 200)}; expected ${expected}`);
}

/** The parts of an object that are there, after checking that it has no others. */
function partsOf(given = {}, names, what) {
  if (typeof given !== "object" || given === null || Array.isArray(given)) refuse(what, given, "an object");
  const found = Object.entries(given).filter(([, part]) => part !== undefined && part !== null);
  for (const [name] of found) if (!names.includes(name)) refuse(`a part of ${what}`, name, `one of ${names}`);
  return { __proto__: null, ...Object.fromEntries(found) };
}

function list(given, length, what) {
  const isList = Array.isArray(given) || ArrayBuffer.isView(given);
  if (!isList || given.length !== (length ?? given.length)) refuse(what, given, `a list of ${length ?? "them"}`);
  return Array.from(given);
}

/** Lists of true or false with this shape. */
function flags(given, [length, ...inner], what) {
  const isRow = length === 1 && inner.length && given.length && !Array.isArray(given[0]); // of the only actor
  const rows = list(isRow ? [given] : given, length, what);
  const checked = (each) => (typeof each === "boolean" ? each : refuse(what, given, "true or false"));
  return rows.map(inner.length ? (row) => flags(row, inner, what) : checked);
}

/**
 * A checked observation: its entities, of each the type, the row of features, the id and whether it is visible; and
 * action -> the places of its actors and actees among them, and functions from an actor to a row of what is open to it.
 */
function readFrame(observation, types, actions) {
  const given = partsOf(observation, PARTS, "the observation");
  const known = types.map(({ name }) => name).filter((name) => name !== GLOBAL);
  const [features, ids, visible] = ["features", "ids", "visible"].map((part) => partsOf(given[part], known, part));
  const offered = partsOf(given.actions, actions.map(({ name }) => name), "actions");
  const [entities, offers, placeOf] = [[], new Map(), new Map()];
  for (const type of types) {
    const { name, features: columns } = type;
    const [what, whole] = [`features of ${name}`, name === GLOBAL];
    const rows = list(whole ? [given.global_features ?? []] : features[name] ?? [], null, what);
    const own = list(ids[name] ?? rows.map(() => undefined), rows.length, `ids of ${name}`);
    const shown = flags(visible[name] ?? rows.map(() => true), [rows.length], `visible of ${name}`);
    rows.forEach((row, n) => {
      const isNumber = (x) => typeof x === "number" && abs(x) <= LARGEST;
      const wrong = list(row, columns.length, what).findIndex((x) => !isNumber(x));
      if (wrong >= 0) refuse(`${columns[wrong].name} of ${name}`, row[wrong], "a number of float32");
      const [id, isId] = [own[n], typeof own[n] === "string" || Number.isInteger(own[n])];
      if (id !== undefined && (!isId || placeOf.has(id))) refuse(`an id of ${name}`, id, "an own text or whole number");
      placeOf.set(id, entities.length);
      entities.push({ type, row: Float64Array.from(row, fround), id, isVisible: shown[n] });
    });
  }
  const find = (byId, byType = known, what) => {
    const ofType = (name) => entities.flatMap(({ type }, place) => (type.name === name ? [place] : []));
    const wrong = byId ? undefined : list(byType, null, what).find((name) => !known.includes(name));
    if (wrong !== undefined) refuse(`a type of the ${what}`, wrong, `one of ${known}`);
    const ofId = (id) => placeOf.get(id) ?? refuse(`an id of the ${what}`, id, "that of an entity");
    const places = byId ? list(byId, null, what).map(ofId) : byType.flatMap(ofType);
    if (new Set(places).size < places.length) refuse(`the list of the ${what}`, byId ?? byType, "each of them once");
    if (places.some((place) => entities[place].id === undefined)) refuse(`an id of the ${what}`, null, "ids");
    return places;
  };
  for (const action of actions.filter(({ name }) => name in offered)) {
    const what = `action ${action.name}`;
    const mask = partsOf(offered[action.name], isGlobal(action) ? ["mask"] : OF_MASKS, what);
    const of = (role) => find(mask[`${role}_ids`], mask[`${role}_types`], `${role}s of ${what}`);
    const actors = isGlobal(action) ? [entities.length - 1] : of("actor");
    const actees = selects(action) && actors.length ? of("actee") : [];
    const columns = selects(action) ? actees.length : action.choices?.length;
    const choiceIn = (earlier, place) => offers.get(earlier)?.choiceOf(place);
    const tables = Object.entries(action.allowed ?? {});
    const closing = tables.map(([earlier, table]) => (k, place) => table[choiceIn(earlier, place)]);
    if (action.exclude_self) closing.push((k, place) => actees.map((actee) => actee !== place));
    if (mask.mask) {
      const rows = flags(mask.mask, [actors.length, columns], `the mask of ${what}`);
      const mayClose = action.exclude_self || action.nobody || isSet(action);
      const closed = rows.find((row) => row.length && !mayClose && !row.includes(true));
      if (closed) refuse(`a row of the mask of ${what}`, closed, "something open");
      closing.push((k) => rows[k]);
    }
    if (mask.mask_after) {
      const [earlier, ...others] = actions.filter((each) => selectsOne(each) && action.after.includes(each.name));
      if (!earlier || others.length) refuse(`after of ${what}`, action.after, "one select-entity action to mask after");
      const before = offers.get(earlier.name)?.actees ?? [];
      const rows = flags(mask.mask_after, [actors.length, before.length, columns], `mask_after of ${what}`);
      closing.push((k, place) => rows[k][before.indexOf(choiceIn(earlier.name, place))]);
    }
    offers.set(action.name, { actors, actees, closing });
  }
  return { entities, offers };
}

/** Adds what the actors of an action do, and how likely that and other choices were, as docs/protocol.md has it. */
function tell({ actions, logProbs, probabilities }, action, { actors, actees, made }, idOf) {
  const [choices, rows, named] = [made.map(({ choice }) => choice), made.map(({ row }) => row), actors.map(idOf)];
  const isAble = (_, k) => choices[k] !== NOBODY;
  logProbs[action.name] = made.map(({ logProb }) => logProb);
  if (!action.low) probabilities[action.name] = isGlobal(action) ? rows[0] : rows;
  if (isGlobal(action)) actions[action.name] = { choice: choices[0], label: action.choices[choices[0]] };
  else if (action.choices) actions[action.name] = { actors: named, choices };
  else if (action.low) actions[action.name] = { actors: named, values: choices.map((numbers) => [...numbers]) };
  if (!selects(action)) return;
  const selected = choices.filter(isAble).map((choice) => (isSet(action) ? choice.map(idOf) : idOf(choice)));
  actions[action.name] = { actors: named.filter(isAble), actees: selected };
  probabilities[action.name] = { actees: actees.map(idOf), rows };
}

const rowOf = (rows, n, width) => rows.subarray(n * width, (n + 1) * width);
const rectified = (rows) => rows.map((x) => max(x, 0));
const sigmoid = (x) => 1 / (1 + exp(-x));
const addedLogs = (x, y) => max(x, y) + log1p(exp(-abs(x - y))); // log(exp(x) + exp(y))
const softplus = (x) => addedLogs(x, 0);
function addTo(sums, values, share = 1) {
  for (let i = 0; i < sums.length; i += 1) sums[i] += share * values[i];
}
const summed = (one, other) => one.map((x, d) => x + (other?.[d] ?? 0));

/** The product of numbers of x from i on and of y from j on, as two sums that do not wait for each other. */
function product(x, i, y, j, length) {
  let a = 0, b = 0, k = 0;
  for (; k + 1 < length; k += 2) {
    a += x[i + k] * y[j + k];
    b += x[i + k + 1] * y[j + k + 1];
  }
  if (k < length) a += x[i + k] * y[j + k];
  return a + b;
}

// the standard normal density at 128 places of every unit, and Φ at 64 places by Simpson's rule
const DENSITY = Float64Array.from({ length: 128 * 7 + 1 }, (_, i) => exp(-((i / 128) ** 2) / 2) / sqrt(2 * Math.PI));
const PHI = Float64Array.from({ length: 64 * 7 }, () => 0.5);
const step = (k) => (DENSITY[k] + 4 * DENSITY[k + 1] + DENSITY[k + 2]) / 384;
for (let i = 1; i < PHI.length; i += 1) PHI[i] = PHI[i - 1] + step(2 * i - 2);

/** x Φ(x), by Taylor's series of Φ from the nearest place: exact to 1e-9. */
function gelu(x) {
  const i = Math.round(abs(x) * 64);
  if (!(i < PHI.length)) return max(x, 0);
  const near = i / 64;
  const t = abs(x) - near;
  const share = PHI[i] + DENSITY[2 * i] * t * (1 - (near * t) / 2 + ((near * near - 1) * t * t) / 6);
  return x * (x < 0 ? 1 - share : share);
}

/** The tensors of a part of a network by name, and the layers that are made of them. */
function weightsOf(tensors, prefix = "") {
  const of = (part) => weightsOf(tensors, prefix + part);
  const get = (name) => tensors.get(prefix + name) ?? fail(`the policy file lacks the tensor ${prefix}${name}`);
  // x W' + b, (n, outputs), of (n, inputs)
  const linear = (name, x) => {
    const [weight, bias] = [get(`${name}.weight`), get(`${name}.bias`)];
    const [outputs, inputs] = [bias.length, weight.length / bias.length];
    const y = new Float64Array((x.length / inputs) * outputs);
    for (let n = 0, place = 0; place < y.length; n += 1)
      for (let o = 0; o < outputs; o += 1) y[place++] = bias[o] + product(x, n * inputs, weight, o * inputs, inputs);
    return y;
  };
  // LayerNorm of (n, D)
  const norm = (name, x) => {
    const [weight, bias, y] = [get(`${name}.weight`), get(`${name}.bias`), new Float64Array(x.length)];
    for (let start = 0; start < x.length; start += weight.length) {
      let mean = 0, squares = 0;
      for (let i = 0; i < weight.length; i += 1) mean += x[start + i] / weight.length;
      for (let i = 0; i < weight.length; i += 1) squares += (x[start + i] - mean) ** 2;
      const scale = 1 / sqrt(squares / weight.length + 1e-5);
      for (let i = 0; i < weight.length; i += 1) y[start + i] = (x[start + i] - mean) * scale * weight[i] + bias[i];
    }
    return y;
  };
  // of number i, by all that training has seen: clip((x - mean) / std, -5, 5); std is 1 where nothing varied
  const normalizer = (name) => {
    const [[count], means, squares] = ["count", "mean", "squares"].map((part) => get(`${name}.${part}`));
    const n = max(count, 1);
    const scales = squares.map((each) => fround(each / n >= SMALLEST ** 2 ? sqrt(n / each) : 1));
    return (x, i) => min(max(fround(fround(x - fround(means[i])) * scales[i]), -5), 5);
  };
  return { of, get, linear, norm, normalizer };
}

// --- From a frame to its tokens
/** Of each entity the token, and the value of a feature; the value of the frame; and what is remembered after it. */
function run(weights, config, known, given, state) {
  const [{ types, entities }, width] = [translated(given, known, config.translation), config.d_model];
  const globals = given.at(-1)?.type.name === GLOBAL ? given.at(-1).row : [];
  const x = new Float64Array(entities.length * width);
  const tokens = entities.map((_, place) => rowOf(x, place, width));
  tokens.forEach((token, place) => token.set(embedded(weights, entities[place], globals)));
  const relative = config.relpos.kind === "none" ? null : relativePositions(weights, config, types, entities);
  const [visible, remembers] = [entities.map(({ isVisible }) => isVisible), config.memory !== "none"];
  const mix = config.pooling === "none" ? attended : pooled;
  let after = null;
  for (let i = 0; i < max(config.n_layer, 1); i += 1) {
    const block = weights.of(`transformer.blocks.${i}.`);
    if (config.n_layer) addTo(x, mix(block, block.norm("attention_norm", x), visible, config, relative));
    if (config.n_layer) addTo(x, block.linear("mlp.3", block.linear("mlp.1", block.norm("mlp.0", x)).map(gelu)));
    if (i === 0 && remembers) after = remember(weights.of("transformer.memory."), config, entities, tokens, state);
  }
  const mean = new Float64Array(width);
  for (const token of tokens) addTo(mean, token, 1 / tokens.length);
  const [[offset], [deviation]] = ["mean", "deviation"].map((name) => weights.get(`value_head.${name}`));
  const value = offset + deviation * weights.linear("value_head.project", mean)[0];
  const column = (feature) =>
    entities.map(({ type, row }) => {
      const [own, global] = [type.features, type.globals].map((each) => each.findIndex(({ name }) => name === feature));
      return row[own] ?? globals[global] ?? 0;
    });
  return { tokens, column, value, after };
}

/** The columns of a type that are a position, undefined without one; and of a row, how the entity sees differences. */
function poseOf({ features }, config) {
  const { position_features: names, rotation_vec_features: vector, rotation_angle_feature: angle } = config;
  const column = (name) => features.findIndex((feature) => feature.name === name);
  const [position, hasAngle] = [names.map(column), column(angle) >= 0];
  const seenBy = (row) => {
    const turns = hasAngle ? [Math.cos, Math.sin].map((of) => fround(of(row[column(angle)]))) : [];
    const [along, across] = hasAngle ? turns : vector.map((name) => row[column(name)]);
    const length = hasAngle ? 1 : fround(hypot(along, across)); // NaN without an orientation
    const [cosine, sine] = length > 0 ? [fround(along / length), fround(across / length)] : [1, 0];
    return ([x, y]) => [fround(fround(cosine * x) + fround(sine * y)), fround(fround(cosine * y) - fround(sine * x))];
  };
  const isTurned = vector.length || angle;
  return { position: position.includes(-1) ? undefined : position, seenBy: isTurned ? seenBy : () => (seen) => seen };
}

/** Types and entities with positions as the only visible entity of the reference type sees them. */
function translated(entities, types, config) {
  const reference = types.find(({ name }) => name === config.reference_entity);
  if (!reference) return { types, entities };
  const [shown, ...others] = entities.filter(({ type, isVisible }) => type === reference && isVisible);
  if (others.length) refuse(`the number of visible ${reference.name}`, others.length + 1, "one or none");
  const pose = poseOf(reference, config);
  const origin = shown && pose.position.map((column) => shown.row[column]);
  const seen = shown ? pose.seenBy(shown.row) : (difference) => difference;
  const stays = (type) => type === reference || type.name === GLOBAL;
  const moves = types.map((type) => (stays(type) ? undefined : poseOf(type, config).position));
  const distance = config.add_distance ? [{ name: `distance to ${reference.name}`, type: "Number" }] : [];
  const wider = types.map((type, i) => ({ ...type, features: [...type.features, ...(moves[i] ? distance : [])] }));
  const moved = entities.map((entity) => {
    const [type, position, { row }] = [wider[entity.type.i], moves[entity.type.i], entity];
    if (!position) return { ...entity, type };
    const place = seen(position.map((column, d) => fround(row[column] - (origin?.[d] ?? 0))));
    const own = row.map((value, column) => place[position.indexOf(column)] ?? value);
    return { ...entity, type, row: config.add_distance ? Float64Array.of(...own, fround(hypot(...place))) : own };
  });
  return { types: wider, entities: moved };
}

/** A token: LayerNorm(ReLU(W x + b + rows of the categories)); without features, a learned vector. */
function embedded(whole, { type, row }, globals) {
  const weights = whole.of(`embedding.entities.${type.i}.`);
  const values = type.name === GLOBAL ? row : [...row, ...globals];
  const all = [...type.features, ...type.globals].map((feature, column) => ({ ...feature, value: values[column] }));
  if (!all.length) return weights.get("vector");
  const ofKind = (kind) => all.filter((feature) => feature.type === kind).map(({ value }) => value);
  const [plain, angles] = [ofKind("Number"), ofKind("Angle")];
  const normalized = plain.length ? plain.map(weights.normalizer("norm")) : [];
  const inputs = Float64Array.of(...normalized, ...angles.map(Math.cos), ...angles.map(Math.sin), ...ofKind("Flag"));
  const width = weights.get("project.2.bias").length;
  const token = inputs.length ? weights.linear("project.0", inputs) : new Float64Array(width);
  all.filter((feature) => feature.type === "Category").forEach(({ name, num, value }, i) => {
    if (!(value >= 0 && value < num)) refuse(`${name} of ${type.name}`, value, `0 to ${num - 1}`);
    addTo(token, rowOf(weights.get(`tables.${i}`), floor(value), width));
  });
  return weights.norm("project.2", rectified(token));
}

/** P [mean over j, max over j](Q x_j): for visible entities over the visible ones, for hidden ones over all. */
function pooled(weights, x, visible, { pooling }) {
  const [prepared, width] = [weights.linear("pool.prepare", x), x.length / visible.length];
  const over = (counts) => {
    const rows = visible.map((_, n) => rowOf(prepared, n, width)).filter((_, n) => counts[n]);
    const reduced = (of) => Array.from({ length: width }, (_, d) => (rows.length ? of(rows.map((row) => row[d])) : 0));
    const mean = reduced((column) => column.reduce((total, each) => total + each) / column.length);
    const most = reduced((column) => column.reduce((best, each) => max(best, each)));
    return weights.linear("pool.project", Float64Array.from({ mean, max: most, meanmax: [...mean, ...most] }[pooling]));
  };
  const [ofVisible, ofAll] = [over(visible), over(visible.map(() => true))];
  return Float64Array.from(visible.flatMap((each) => [...(each ? ofVisible : ofAll)]));
}

/** P sum_j p_ij v_j, p_ij = softmax_j(q_i · k_j / sqrt(K)), of each head; relative positions add to k and v. */
function attended(block, x, visible, { d_model: width, n_head: heads }, relative) {
  const [size, wide, K, qkv] = [visible.length, 3 * width, width / heads, block.linear("query_key_value", x)];
  const [y, weights, gates] = [new Float64Array(x.length), new Float64Array(size), relative?.gates(x)];
  for (let i = 0; i < size; i += 1) {
    for (let head = 0; head < width; head += K) {
      let largest = -Infinity, total = 0;
      for (let j = 0; j < size; j += 1) {
        let score = product(qkv, i * wide + head, qkv, j * wide + width + head, K);
        if (relative) score += product(qkv, i * wide + head, relative.keys, (i * size + j) * K, K);
        weights[j] = visible[i] && !visible[j] ? -Infinity : score / sqrt(K);
        largest = max(largest, weights[j]);
      }
      for (let j = 0; j < size; j += 1) total += weights[j] = exp(weights[j] - largest);
      for (let j = 0; j < size; j += 1) {
        const [share, from, to] = [weights[j] / total, j * wide + 2 * width + head, i * width + head];
        for (let d = 0; d < K; d += 1) {
          const added = relative ? relative.values[(i * size + j) * K + d] * (gates ? gates[j * K + d] : 1) : 0;
          y[to + d] += share * (qkv[from + d] + added);
        }
      }
    }
  }
  return block.linear("project", y);
}

/** What relative positions add to keys and values, (E, E, K): sums of rows of tables, chosen by how i stands to j. */
function relativePositions(whole, { relpos, d_model: width, n_head: heads }, types, entities) {
  const weights = whole.of("transformer.relative_positions.");
  const { kind, extent, scale, interpolate, exclude_entities: excluded } = relpos;
  const [K, sizes] = [width / heads, kind === "grid" ? extent.map((each) => 2 * each + 1) : extent];
  const [ofKeys, ofValues] = [weights.get("keys"), weights.get("values")];
  const buckets = sizes.reduce((all, size) => all * size, 1);
  const normalize = relpos.key_projection || relpos.value_projection ? weights.normalizer("norm") : null;
  const counts = (type) => poseOf(type, relpos).position && !excluded.includes(type.name);
  const blocks = types.filter(counts).map(({ i }) => i); // types with tables of values of their own
  const places = entities.map(({ type, row }) => {
    const [{ position, seenBy }, block] = [poseOf(type, relpos), blocks.indexOf(type.i)];
    const first = relpos.per_entity_values ? buckets * block : 0;
    return block < 0 ? null : { first, position: position.map((column) => row[column]), seen: seenBy(row) };
  });
  const [keys, values] = [0, 0].map(() => new Float64Array(places.length ** 2 * K));
  const isCircle = kind === "radial" || kind === "polar"; // the first axis
  const relate = (one, other, pair) => {
    const [key, value] = [rowOf(keys, pair, K), rowOf(values, pair, K)];
    const difference = one.seen(one.position.map((each, d) => fround(each - other.position[d])));
    const distance = hypot(...difference);
    const turns = distance === 0 ? 0 : Math.atan2(difference[1], difference[0]) / (2 * Math.PI);
    const [angle, length] = [(turns - floor(turns)) * extent[0], min(distance / scale, extent.at(-1) - 1)];
    const grid = difference.map((each, d) => min(max(each / scale, -extent[d]), extent[d]) + extent[d]);
    const onAxes = { grid, radial: [angle], distance: [length], polar: [angle, length] }[kind];
    for (let term = 0; term < (interpolate ? 2 ** onAxes.length : 1); term += 1) {
      let [row, share, stride] = [0, 1, 1];
      onAxes.forEach((at, axis) => {
        const below = floor(interpolate ? at : at + (kind === "grid" ? 0.5 : 0) + 1e-4); // on a border: the next one
        const step = (term >> axis) & 1;
        if (interpolate) share *= step ? at - below : 1 - (at - below);
        row += (isCircle && axis === 0 ? (below + step) % sizes[axis] : min(below + step, sizes[axis] - 1)) * stride;
        stride *= sizes[axis];
      });
      addTo(key, rowOf(ofKeys, row, K), share);
      addTo(value, rowOf(ofValues, other.first + row, K), share);
    }
    const components = normalize ? Float64Array.from([...difference, distance], normalize) : null;
    if (relpos.key_projection) addTo(key, weights.linear("key_projection", components));
    if (relpos.value_projection) addTo(value, weights.linear("value_projection", components));
  };
  places.forEach((one, i) => places.forEach((other, j) => one && other && relate(one, other, i * places.length + j)));
  const act = { linear: (x) => x, relu: (x) => max(x, 0), gelu, sigmoid }[relpos.value_gate];
  return { keys, values, gates: (x) => (act ? weights.linear("gate_projection", x).map(act) : null) };
}

/** Memory: h += z (c - h) along the id of each entity. Changes the tokens; returns [type, id] as JSON -> h. */
function remember(weights, { memory, memory_types: chosen, d_model: width }, entities, tokens, state) {
  const after = {};
  const isOne = ({ name }) => name !== GLOBAL && memory !== "frame" && (chosen?.includes(name) ?? true);
  const ones = entities.filter(({ type }) => isOne(type));
  if (ones[0] && ones.every(({ id }) => id === undefined)) refuse(`ids of ${ones[0].type.name}`, null, "some");
  entities.forEach(({ type, id }, place) => {
    if (!(type.name === GLOBAL ? memory !== "entity" : isOne(type) && id !== undefined)) return;
    const key = JSON.stringify([type.name, id]);
    const gates = weights.linear("gates", weights.norm("norm_in", tokens[place]));
    const before = state?.[key] ?? rowOf(weights.get("first"), type.i, width);
    after[key] = Array.from(gates.subarray(width), (c, d) => fround(before[d] + sigmoid(gates[d]) * (c - before[d])));
    addTo(tokens[place], weights.linear("out", weights.norm("norm_out", after[key])));
  });
  return after;
}

// --- Heads: from an actor's token, `choose` makes its `choice`, with its `logProb` and the `row` of all probabilities
/** One of the open choices: the first likeliest, or with `random` a drawn one; NOBODY if none is open. */
function pick(logits, open, random) {
  const opened = Array.from(logits, (each, c) => (open && !open[c] ? -Infinity : each));
  const largest = opened.reduce((most, each) => max(most, each), -Infinity);
  if (largest === -Infinity) return { choice: NOBODY, logProb: 0, row: opened.map(() => 0) };
  const weights = opened.map((each) => exp(each - largest));
  const total = weights.reduce((all, each) => all + each, 0);
  let [choice, left] = [opened.indexOf(largest), random ? random() * total : -1];
  for (let c = 0; left >= 0 && c < weights.length; left -= weights[c], c += 1) if (weights[c] > 0) choice = c;
  return { choice, logProb: opened[choice] - largest - log(total), row: weights.map((each) => each / total) };
}

function categorical(weights, action) {
  const choose = (token, { open, random }) => pick(weights.linear("project", token), open, random);
  const message = (choice, tokens) => rowOf(weights.get("told.weight"), choice, tokens[0].length);
  return { choose, message };
}

/** What heads that select entities have in common. */
function selecting(weights, action) {
  const size = weights.get("query.bias").length;
  const selected = (choice) => (choice === NOBODY ? [] : [choice].flat());
  const message = (choice, tokens) => {
    const [mean, places] = [new Float64Array(tokens[0].length), selected(choice)];
    for (const place of places) addTo(mean, weights.linear("told.selected", tokens[place]), 1 / places.length);
    return mean;
  };
  const all = (name, actees) => actees.map((token) => weights.linear(name, token));
  const prepare = (actees) => ({ keys: all("key", actees), picked: action.ordered ? all("picked", actees) : null });
  const products = (query, keys) => keys.map((key) => product(query, 0, key, 0, size) / sqrt(size));
  return { size, selected, message, prepare, products };
}

function selectEntity(weights, action) {
  const head = selecting(weights, action);
  const nobody = action.nobody ? [weights.get("nobody")] : [];
  const choose = (token, { actees, keys, taken, open, random }) => {
    const logits = head.products(weights.linear("query", token), [...keys, ...nobody]);
    const weight = action.after.includes(ACTORS) ? weights.linear("taken", token)[0] : 0;
    const made = pick(logits.map((each, j) => each + weight * (taken[j] ?? 0)), open && [...open, true], random);
    return { ...made, choice: actees[made.choice] ?? NOBODY };
  };
  return { ...head, choose };
}

/** Yes or no for each actee, one after the other; where sizes are limited, given that the size is allowed. */
function independentSet(weights, action) {
  const head = selecting(weights, action);
  const isLimited = action.min > 0 || (action.max ?? null) !== null;
  const choose = (token, { actees, keys, open, random }) => {
    const z = head.products(weights.linear("query", token), keys).map((each, j) => (open && !open[j] ? NEVER : each));
    const numOpen = open ? open.filter(Boolean).length : actees.length;
    const [least, most] = [min(action.min ?? 0, numOpen), min(action.max ?? numOpen, numOpen)];
    // later[j][c]: logarithm of the weight of all allowed sets that have c entities before actee j
    const later = [Array.from({ length: z.length + 2 }, (_, c) => (c >= least && c <= most ? 0 : NEVER))];
    for (const each of isLimited ? [...z].reverse() : []) {
      const [after] = later;
      later.unshift(after.map((out, c) => addedLogs(out, each + (after[c + 1] ?? NEVER))));
    }
    const wanted = min(max(z.filter((each) => each > 0).length, least), most);
    const best = new Set([...z.keys()].sort((i, j) => z[j] - z[i]).slice(0, wanted)); // of equals the first
    const decision = { choice: [], logProb: 0, row: [] };
    z.forEach((each, j) => {
      const c = decision.choice.length;
      const odds = isLimited ? each + later[j + 1][c + 1] - later[j + 1][c] : each;
      const yes = odds > NEVER / 2 ? -softplus(-odds) : -Infinity;
      const takes = random ? random() < exp(yes) : best.has(j);
      if (takes) decision.choice.push(actees[j]);
      decision.logProb += takes ? yes : -softplus(odds);
      decision.row.push(exp(yes));
    });
    return decision;
  };
  return { ...head, choose };
}

/** One pick after the other, which sees those before, until it stops. */
function orderedSet(weights, action) {
  const { size, products, ...head } = selecting(weights, action);
  const choose = (token, { actees, keys, picked, open, costs, budget, random }) => {
    const [query, chosen, sums] = [weights.linear("query", token), [], new Float64Array(size)];
    let [logProb, left, row] = [0, budget, null]; // in float64, the sums of costs are exact
    for (;;) {
      const now = query.slice();
      if (chosen.length) addTo(now, picked[chosen[0]]);
      if (chosen.length) addTo(now, picked[chosen.at(-1)].subarray(size));
      addTo(now, sums, 1 / max(actees.length, 1));
      if (costs) addTo(now, weights.linear("left", Float64Array.of(min(max(left / max(budget, 1e-6), 0), 1))));
      const can = actees.map((_, j) => !chosen.includes(j) && (!open || open[j]) && (!costs || costs[j] <= left));
      const may = can.map((each) => each && chosen.length < (action.max ?? Infinity));
      may.push(!can.includes(true) || chosen.length >= (action.min ?? 0)); // to stop
      const made = pick(products(now, [...keys, weights.get("stop")]).map((score) => 10 * tanh(score)), may, random);
      [logProb, row] = [logProb + made.logProb, row ?? made.row];
      if (made.choice === actees.length) return { choice: chosen.map((j) => actees[j]), logProb, row };
      chosen.push(made.choice);
      addTo(sums, picked[made.choice].subarray(2 * size));
      if (costs) left -= costs[made.choice];
    }
  };
  return { ...head, choose };
}

/** Numbers a = f(u) of Gaussian u, where f keeps a within bounds; in float32, whose rounding matters near a bound. */
function continuous(weights, action) {
  const bounds = action.low.map((low, k) => boundsOf(fround(low ?? -Infinity), fround(action.high[k] ?? Infinity)));
  const logStd = weights.get("log_std").map((each) => min(max(each, -20), 20));
  const choose = (token, { random }) => {
    const mean = weights.linear("project", token).map(fround);
    const noise = () => (random ? sqrt(-2 * log(1 - random())) * Math.cos(2 * Math.PI * random()) : 0); // Box & Muller
    const choice = mean.map((each, k) => bounds[k].of(fround(each + exp(logStd[k]) * noise())));
    const logProb = choice.reduce((all, each, k) => {
      const [u, logSlope] = bounds[k].invert(each);
      return all - 0.5 * ((u - mean[k]) * exp(-logStd[k])) ** 2 - logStd[k] - log(2 * Math.PI) / 2 - logSlope;
    }, 0);
    return { choice, logProb };
  };
  const message = (choice) => weights.linear("told", choice.map((each, k) => bounds[k].scaled(each)));
  return { choose, message };
}

/** f of a number with these bounds; its inverse, with the logarithm of f'; and how later actions see the number. */
function boundsOf(low, high) {
  const clipped = (a) => min(max(fround(a), low), high);
  if (low === -Infinity && high === Infinity) return { of: (u) => u, invert: (a) => [a, 0], scaled: (a) => a };
  const outermost = max(...[low, high].filter(Number.isFinite).map(abs));
  const step = outermost && outermost - fround(outermost * (1 - 2 ** -24)); // of float32, inside the farther bound
  if (low !== -Infinity && high !== Infinity) {
    const [center, radius, limit] = [(low + high) / 2, (high - low) / 2, 1 - step / ((high - low) / 2)].map(fround);
    const scaled = (a) => fround(fround(a - center) / radius);
    const invert = (a) => {
      const y = min(max(scaled(a), -limit), limit);
      const [over, under] = [fround(log1p(y)), fround(log1p(-y))];
      return [fround((over - under) / 2), log(radius) + over + under];
    };
    return { of: (u) => clipped(center + fround(radius * fround(Math.tanh(u)))), invert, scaled };
  }
  const [sign, edge] = low === -Infinity ? [-1, high] : [1, low];
  const inside = (a) => max(fround(sign * (a - edge)), step, SMALLEST);
  const slope = (y) => fround(log(fround(-Math.expm1(-y))));
  const invert = (a) => [fround(sign * fround(inside(a) + slope(inside(a)))), slope(inside(a))];
  return { of: (u) => clipped(edge + sign * fround(softplus(sign * u))), invert, scaled: (a) => a };
}

/** How an action is decided, and how later actions are told. */
function headOf(weights, action) {
  const selection = isSet(action) ? (action.ordered ? orderedSet : independentSet) : selectsOne(action) && selectEntity;
  const kind = action.choices ? categorical : action.low ? continuous : selection;
  if (!kind) fail(`its action ${action.name} is a ${action.type}, which is unknown`);
  return { weights, action, ...kind(weights, action) };
}
