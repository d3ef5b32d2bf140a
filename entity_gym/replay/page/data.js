// ---- Data: reads and checks a replay (docs/replays.md), and finds entities, choices and attention of a view.

const FORMAT = 'enn-ppo replay';
const VERSION = 1;
const GLOBAL = '__global__';
const WHOLE_WEIGHT = 65535; // the integer that stands for an attention weight of 1

// The message is the sentence that the page shows.
class Damaged extends Error {}

// Names come from the world, so "constructor" and the like must not find what objects inherit.
const own = (object, key) => (object && Object.hasOwn(object, key) ? object[key] : undefined);
const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

async function readReplay(element) {
  const text = await gunzip(element.textContent).catch(() => damaged('its data cannot be decompressed'));
  let replay;
  try {
    replay = JSON.parse(text);
  } catch {
    damaged('its data is not JSON');
  }
  return checkReplay(replay);
}

async function gunzip(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).text();
}

function bytesOf(base64) {
  const characters = atob(base64.trim());
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

// ---- Checks. They look at everything that the page indexes, so that a damaged file is a sentence and not half a page.

function damaged(what) {
  throw new Damaged(`This replay is damaged: ${what}.`);
}

function expect(isFine, what) {
  if (!isFine) damaged(what);
}

function checkReplay(replay) {
  if (!isObject(replay) || replay.format !== FORMAT) throw new Damaged('This page holds no replay of enn-ppo.');
  if (replay.version !== VERSION) {
    throw new Damaged(
      `This replay has version ${JSON.stringify(replay.version)}, and this page reads version ${VERSION}: ` +
        'open it with the release of enn-ppo that wrote it.',
    );
  }
  for (const key of ['entities', 'actions']) expect(isObject(replay[key]), `${key} is no object`);
  for (const key of ['episodes', 'players']) expect(Array.isArray(replay[key]), `${key} is no list`);
  expect(replay.players.length > 0, 'players is empty');
  replay.global_features ??= [];
  replay.order ??= Object.keys(replay.entities);
  for (const type of replay.order) expect(Array.isArray(own(replay.entities, type)?.features), `${type} has no features`);
  replay.episodes.forEach((episode, i) => checkEpisode(replay, episode, `episode ${i + 1}`));
  return replay;
}

function checkEpisode(replay, episode, where) {
  expect(isObject(episode) && Array.isArray(episode.steps) && episode.steps.length > 0, `${where} has no steps`);
  episode.steps.forEach((step, t) => {
    const views = isObject(step) ? step.views : null;
    expect(Array.isArray(views) && views.length === replay.players.length, `step ${t} of ${where} lacks views`);
    for (const view of views) checkView(replay, view, `step ${t} of ${where}`);
  });
}

function checkView(replay, view, where) {
  expect(isObject(view) && isObject(view.features), `a view of ${where} has no features`);
  let count = hasGlobal(replay) ? 1 : 0;
  expect(view.globals == null || view.globals.length === replay.global_features.length, `global features of ${where} do not fit`);
  for (const [type, rows] of Object.entries(view.features)) {
    const width = own(replay.entities, type)?.features.length;
    expect(width !== undefined, `${where} has an entity of an unknown type`);
    const fits = Array.isArray(rows) && rows.every((row) => Array.isArray(row) && row.length === width);
    expect(fits, `features of ${where} do not fit their type`);
    count += rows.length;
  }
  const { memory } = view;
  const isShare = (share) => share === null || (share >= 0 && share <= 1);
  expect(memory == null || (Array.isArray(memory) && memory.length <= count && memory.every(isShare)), `memory of ${where} does not fit`);
  const isEntity = (number) => Number.isInteger(number) && number >= 0 && number < count;
  for (const [action, decision] of Object.entries(view.actions ?? {})) {
    expect(own(replay.actions, action), `${where} has an unknown action`);
    const { actors, chosen, actees = [] } = isObject(decision) ? decision : {};
    const isChoice = (choice) => own(replay.actions, action).kind !== 'select_entities' || choice === null || Array.isArray(choice);
    expect(Array.isArray(actors) && actors.every(isEntity), `actors of ${where} are no entities of it`);
    expect(Array.isArray(actees) && actees.every(isEntity), `actees of ${where} are no entities of it`);
    expect(Array.isArray(chosen) && chosen.length === actors.length && chosen.every(isChoice), `choices of ${where} do not fit its actors`);
    for (const key of ['probs', 'mask', 'mean', 'std', 'entropy']) {
      const rows = decision[key];
      expect(rows == null || (Array.isArray(rows) && rows.length === actors.length), `${key} of ${where} does not fit its actors`);
    }
  }
}

// Whether the frames end with the global entity.
function hasGlobal(replay) {
  return replay.global_features.length > 0 || Object.values(replay.actions).some((space) => space.kind === 'global_categorical');
}

// ---- Frames: the entities of a view by their number, and who of them decides.

const frames = new WeakMap();

function frameOf(view) {
  if (!frames.has(view)) frames.set(view, makeFrame(state.replay, view));
  return frames.get(view);
}

function makeFrame(replay, view) {
  const entities = [];
  for (const type of replay.order) {
    const ids = own(view.ids, type);
    const hidden = own(view.hidden, type);
    (own(view.features, type) ?? []).forEach((values, row) => {
      const id = ids?.[row];
      const key = JSON.stringify([type, id ?? row]);
      entities.push({ number: entities.length, type, row, id, key, values, hidden: Boolean(hidden?.[row]) });
    });
  }
  if (hasGlobal(replay)) {
    const values = view.globals ?? [];
    entities.push({ number: entities.length, type: GLOBAL, row: 0, key: GLOBAL, values, hidden: false });
  }
  for (const entity of entities) entity.memory = view.memory?.[entity.number] ?? null;
  const byKey = new Map(entities.map((entity) => [entity.key, entity]));
  return { entities, byKey, decisions: decisionsByActor(view) };
}

function decisionsByActor(view) {
  const found = new Map();
  for (const [action, decision] of Object.entries(view.actions ?? {})) {
    decision.actors.forEach((actor, row) => {
      if (!found.has(actor)) found.set(actor, []);
      found.get(actor).push({ action, row });
    });
  }
  return found;
}

function featureNames(type) {
  return type === GLOBAL ? state.replay.global_features : state.replay.entities[type].features;
}

function featureKind(type, name) {
  const kinds = type === GLOBAL ? state.replay.global_kinds : state.replay.entities[type].kinds;
  return own(kinds, name)?.kind ?? 'number';
}

function entityName(entity) {
  if (entity.type === GLOBAL) return 'world';
  return `${entity.type} ${entity.id ?? entity.row}`;
}

// ---- Choices of one actor

const kindOf = (action) => own(state.replay.actions, action)?.kind;
const isContinuous = (action) => kindOf(action) === 'continuous';
const isSet = (action) => kindOf(action) === 'select_entities';
const selects = (action) => isSet(action) || kindOf(action) === 'select_entity';

// Returns [{column, label, target, probability, allowed, chosen, place}]. `target` is an entity number, and null for other
// choices; `place` is that in an ordered set, from 1 on, and otherwise 0. The last choice of a set is that it is complete.
function choicesOf(view, action, row) {
  const space = own(state.replay.actions, action);
  const decision = view.actions[action];
  const { entities } = frameOf(view);
  const targets = selects(action) ? decision.actees ?? [] : [];
  const labels = selects(action) ? targets.map((k) => entityName(entities[k])) : [...space.choices];
  if (space.kind === 'select_entity' && space.nobody) labels.push('nobody');
  if (isSet(action) && (space.ordered || isDrafting())) labels.push('no more');
  const chosen = decision.chosen[row];
  const order = isSet(action) && chosen ? [...chosen, targets.length] : [];
  return labels.map((label, column) => {
    const target = targets[column] ?? null;
    const isNobody = space.kind === 'select_entity' && target === null;
    const isEnd = isSet(action) && target === null;
    return {
      column,
      label,
      target,
      probability: decision.probs?.[row]?.[column] ?? null,
      allowed: decision.mask?.[row] && !isEnd ? Boolean(decision.mask[row][column]) : true,
      chosen: column === chosen || (isNobody && chosen === -1) || order.includes(column),
      place: space.ordered ? order.indexOf(column) + 1 : 0,
    };
  });
}

// Returns [{label, low, high, mean, std, chosen}], one for each number of a continuous action.
function numbersOf(view, action, row) {
  const space = own(state.replay.actions, action);
  const decision = view.actions[action];
  return space.low.map((low, k) => ({
    label: space.names?.[k] ?? `number ${k}`,
    low: low ?? -Infinity,
    high: space.high[k] ?? Infinity,
    mean: decision.mean?.[row]?.[k] ?? null,
    std: decision.std?.[row]?.[k] ?? null,
    chosen: decision.chosen[row]?.[k] ?? null,
  }));
}

// ---- Attention

const attentions = new WeakMap();

function attentionOf(view) {
  if (!view.attention || !state.replay.network) return null;
  if (!attentions.has(view)) attentions.set(view, decodeAttention(view.attention, state.replay.network));
  return attentions.get(view);
}

function decodeAttention({ dense, top, indices, weights }, { layers, heads }) {
  const values = sixteenBits(dense ?? weights);
  const size = dense ? Math.sqrt(values.length / (layers * heads)) : values.length / (layers * heads * top);
  if (!Number.isInteger(size)) damaged('attention weights do not fit the network');
  return { layers, heads, size, values, width: dense ? size : top, indices: dense ? null : sixteenBits(indices) };
}

function sixteenBits(base64) {
  const bytes = bytesOf(base64);
  const values = new Uint16Array(bytes.length >> 1);
  for (let i = 0; i < values.length; i++) values[i] = bytes[2 * i] | (bytes[2 * i + 1] << 8);
  return values;
}

// Weights with which an entity attends to every entity of the frame. A layer or head of null: the mean of all.
function attentionWeights(view, number, layer, head) {
  const attention = attentionOf(view);
  if (!attention || number >= attention.size) return null;
  const { layers, heads, size, width, values, indices } = attention;
  const chosenLayers = layer === null ? [...Array(layers).keys()] : [layer];
  const chosenHeads = head === null ? [...Array(heads).keys()] : [head];
  const share = 1 / (WHOLE_WEIGHT * chosenLayers.length * chosenHeads.length);
  const result = new Float64Array(size);
  for (const l of chosenLayers) {
    for (const h of chosenHeads) {
      const start = ((l * heads + h) * size + number) * width;
      for (let k = 0; k < width; k++) {
        const seen = indices ? indices[start + k] : k;
        if (seen < size) result[seen] += values[start + k] * share;
      }
    }
  }
  return result;
}

// ---- Series over the steps of an episode

const series = new WeakMap();

// Returns {reward, value, entropy, surprise}: lists with a number or null for each step; surprises are {amount, reason}.
function seriesOf(episode, player) {
  if (!series.has(episode)) series.set(episode, []);
  const known = series.get(episode);
  // An episode that is being played grows.
  if (known[player]?.length !== episode.steps.length) known[player] = makeSeries(episode, player);
  return known[player];
}

function makeSeries(episode, player) {
  const { steps } = episode;
  const spread = jumpSpread(player);
  return {
    length: steps.length,
    reward: steps.map((step, t) => (t ? rewardOf(step, player) : null)),
    value: steps.map((step) => step.views[player].value ?? null),
    entropy: steps.map((step) => meanEntropy(step.views[player])),
    surprise: steps.map((step, t) => surpriseOf(steps, t, player, spread)),
  };
}

function rewardOf(step, player) {
  return (state.replay.players.length > 1 ? step.rewards?.[player] : null) ?? step.reward ?? 0;
}

function meanEntropy(view) {
  const all = Object.values(view.actions ?? {}).flatMap((decision) => decision.entropy ?? []);
  const numbers = all.filter((entropy) => entropy !== null);
  return numbers.length ? sum(numbers) / numbers.length : null;
}

// How far reward and new value are from the value that was expected one step before; null where there is no value.
function jumpOf(steps, t, player) {
  const before = t ? steps[t - 1].views[player].value : null;
  const isOver = steps[t].done && !steps[t].truncated;
  const after = isOver ? 0 : steps[t].views[player].value;
  return before == null || after == null ? null : rewardOf(steps[t], player) + after - before;
}

// Standard deviation of the jumps of all episodes, so that they can be compared with -log probabilities.
function jumpSpread(player) {
  const jumps = state.replay.episodes.flatMap(({ steps }) => steps.map((_, t) => jumpOf(steps, t, player)));
  const known = jumps.filter((jump) => jump !== null);
  return known.length ? Math.sqrt(sum(known.map((jump) => jump * jump)) / known.length) : 0;
}

function surpriseOf(steps, t, player, spread) {
  let largest = { amount: 0, reason: 'nothing' };
  const consider = (amount, reason) => {
    if (amount > largest.amount) largest = { amount, reason: reason() };
  };
  const view = steps[t].views[player];
  for (const [action, decision] of Object.entries(view.actions ?? {})) {
    decision.actors.forEach((actor, row) => {
      const probability = chosenProbability(view, action, row);
      if (probability === null) return;
      const name = () => entityName(frameOf(view).entities[actor]);
      const rare = () => `${short(name())} took a choice of ${short(action)} that had ${percent(probability)}`;
      consider(-Math.log(Math.max(probability, 1e-12)), rare);
    });
  }
  const jump = jumpOf(steps, t, player);
  if (jump !== null && spread > 0) {
    consider(Math.abs(jump) / spread, () => `return and value came to ${signed(jump)} ${jump < 0 ? 'less' : 'more'} than expected`);
  }
  return largest;
}

// Probability of the choice taken; of numbers, the density relative to its largest; of sets, of the least probable pick, or
// for an unordered one of the least probable entity to be in the set or not. Null without a network.
function chosenProbability(view, action, row) {
  const decision = view.actions[action];
  if (isSet(action)) return leastProbable(view, action, row);
  if (!isContinuous(action)) return decision.probs?.[row]?.[decision.chosen[row]] ?? null;
  const numbers = numbersOf(view, action, row);
  if (numbers.some(({ mean, std, chosen }) => mean === null || !(std > 0) || chosen === null)) return null;
  return Math.exp(-sum(numbers.map(({ mean, std, chosen }) => ((chosen - mean) / std) ** 2)) / 2);
}

function leastProbable(view, action, row) {
  const { chosen, advised, probs } = view.actions[action];
  const isOrdered = own(state.replay.actions, action).ordered;
  // A person's picks are not those whose probabilities are known.
  if (!chosen[row] || !probs || (isOrdered && advised && String(advised[row]) !== String(chosen[row]))) return null;
  const counted = choicesOf(view, action, row).filter((choice) => choice.probability !== null && (choice.chosen || (!isOrdered && choice.allowed)));
  return Math.min(1, ...counted.map((choice) => (choice.chosen ? choice.probability : 1 - choice.probability)));
}

// ---- Numbers and names as text

function short(text, most = 60) {
  const characters = [...String(text).slice(0, 4 * most)];
  return characters.length > most ? `${characters.slice(0, most - 1).join('')}…` : characters.join('');
}

function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return withMinus(String(value));
  return withMinus(String(Number(value.toPrecision(digits))));
}

const withMinus = (text) => text.replace('-', '−');
const signed = (value) => number(Math.abs(value), 3);

function percent(probability) {
  if (probability === null) return '';
  const hundred = 100 * probability;
  if (hundred > 0 && hundred < 0.1) return '< 0.1%';
  return `${hundred.toFixed(hundred < 10 || hundred > 99 ? 1 : 0).replace(/\.0$/, '')}%`;
}
