// ---- Start: shows a replay, connects buttons, and offers its numbers to scripts as `window.replay`.

let colors = null;
let isScheduled = false;

function readColors() {
  const style = getComputedStyle(document.documentElement);
  const names = ['ground', 'line', 'edge', 'ink', 'faint', 'curve', 'choice', 'attention'];
  colors = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  colors.theme = colors.ground;
}

// Draws once before the next frame, however often it is called.
function redraw() {
  if (isScheduled || !state.replay) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    guarded(draw);
  });
}

const drawing = { count: 0, milliseconds: 0 };

function draw() {
  if (state.replay.episodes.length === 0) return;
  const begin = performance.now();
  drawPlayer();
  drawWorld();
  drawCards();
  drawLegend();
  drawPanel();
  drawCharts();
  drawTurn();
  drawing.count++;
  drawing.milliseconds += performance.now() - begin;
}

// Runs a function; whatever is wrong with the data becomes a sentence instead of half a page.
function guarded(run) {
  try {
    return run();
  } catch (error) {
    fail(error);
    return undefined;
  }
}

function fail(error) {
  const message = error instanceof Damaged ? error.message : `This replay is damaged: ${error.message}.`;
  state.playing = false;
  byId('page').hidden = true;
  setText(byId('message'), message);
  byId('message').hidden = false;
}

// ---- A replay is shown

function show(replay) {
  Object.assign(state, { replay, version: state.version + 1, episode: 0, step: 0, player: 0, playing: false });
  const isEmpty = replay.episodes.length === 0;
  document.title = short(replay.title ?? 'Replay', 200);
  byId('title').replaceChildren(nameElement(replay.title ?? 'Replay'));
  byId('settings').replaceChildren(nameElement(describeSettings(replay)));
  byId('page').hidden = isEmpty && state.mode !== 'live';
  byId('page').classList.toggle('empty', isEmpty);
  byId('message').hidden = !isEmpty;
  setText(byId('message'), state.mode === 'live' ? 'Waiting for the first evaluation…' : 'This replay has no episodes.');
  if (isEmpty) return;
  listEpisodes();
  listPlayers();
  fillLayerLists();
  if (Math.max(...replay.episodes.map(({ steps }) => steps.length)) > 80 && state.speed === 4) changeSpeed(1);
  startEpisode();
  selectActor();
  redraw();
}

function describeSettings(replay) {
  const settings = Object.entries(isObject(replay.settings) ? replay.settings : {});
  const given = settings.map(([name, value]) => `${name} = ${shownValue(value)}`).join(', ');
  return [replay.world, given].filter(Boolean).join(': ');
}

function listEpisodes() {
  const options = state.replay.episodes.map(({ reward, steps }, i) => {
    return new Option(`${i + 1} of ${state.replay.episodes.length}: reward ${number(reward)}, ${steps.length - 1} steps`, String(i));
  });
  byId('episode').replaceChildren(...options);
  byId('episode').value = String(state.episode);
}

function listPlayers() {
  const { players } = state.replay;
  byId('player-label').hidden = players.length < 2;
  byId('player').replaceChildren(...players.map((name, i) => new Option(short(name) || `player ${i + 1}`, String(i))));
}

// The first actor is selected, so that the page shows a decision at once.
function selectActor() {
  const frame = frameOf(currentView());
  if (frame.byKey.has(state.selected)) return;
  const [first] = frame.decisions.keys();
  state.selected = first === undefined ? null : frame.entities[first].key;
}

// ---- Buttons and pointers

function connect() {
  makeCharts();
  const onClick = (id, action) => byId(id).addEventListener('click', () => guarded(action));
  onClick('previous-episode', previousEpisode);
  onClick('next-episode', nextEpisode);
  onClick('back', () => stepBy(-1));
  onClick('forward', () => stepBy(1));
  onClick('play', () => (state.playing ? pause() : play()));
  onClick('to-end', () => jump(lastStep()));
  onClick('to-reward', () => jump(largestReward()));
  onClick('to-surprise', () => jump(largestSurprise()));
  onClick('help', () => byId('keys').showModal());
  onClick('take-step', takeStep);
  onClick('random-rest', randomRest);
  onClick('advised-rest', advisedRest);
  onClick('undo', () => post('undo', {}));
  onClick('restart', () => post('restart', {}));
  byId('scrub').addEventListener('input', (event) => jump(Number(event.target.value)));
  connectLists();
  connectWorld();
  document.addEventListener('keydown', (event) => guarded(() => onKey(event)));
  // After a click with the pointer, space and Enter have their own effect, and do not press that button again.
  document.addEventListener('click', (event) => {
    if (event.detail > 0) event.target.closest('button')?.blur();
  });
  window.addEventListener('hashchange', () => guarded(followLink));
  new ResizeObserver(redraw).observe(byId('stage'));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    readColors();
    tablesOf = null;
    if (state.replay?.episodes.length) makeLegend();
    redraw();
  });
}

function connectLists() {
  const onChange = (id, action) => byId(id).addEventListener('change', (event) => guarded(() => action(event.target.value)));
  const numberOrNull = (text) => (text === '' ? null : Number(text));
  byId('speed').replaceChildren(...SPEEDS.map((speed) => new Option(`${speed} steps/s`, String(speed))));
  byId('speed').value = String(state.speed);
  onChange('speed', (value) => (state.speed = Number(value)));
  onChange('episode', (value) => go(Number(value), 0));
  onChange('player', (value) => changePlayer(Number(value)));
  onChange('actor', (value) => select(value || null));
  onChange('layer', (value) => {
    state.layer = numberOrNull(value);
    redraw();
  });
  onChange('head', (value) => {
    state.head = numberOrNull(value);
    redraw();
  });
  const keys = state.mode === 'play' ? [['0 … 9', 'take a choice of the selected actor'], ['Enter', 'step'], ['u', 'undo'], ...KEYS] : KEYS;
  byId('key-list').replaceChildren(...keys.map(([key, text]) => element('div', {}, element('dt', {}, key), element('dd', {}, text))));
}

function connectWorld() {
  world.addEventListener('click', (event) => guarded(() => pickUnder(event)));
  world.addEventListener('pointermove', (event) => {
    const [entity] = entitiesUnder(event);
    world.classList.toggle('over-entity', Boolean(entity));
    if (entity) showTooltip(entity, event);
    else hideTooltip();
  });
  world.addEventListener('pointerleave', hideTooltip);
}

// Where several entities lie at one place, each click takes the next one.
function pickUnder(event) {
  if (game && rearrangeUnder(event)) return;
  const found = entitiesUnder(event);
  if (found.length === 0) return;
  const current = found.findIndex(({ key }) => key === state.selected);
  pick(found[(current + 1) % found.length], event.shiftKey);
}

// ---- For scripts: the numbers that are drawn.

function probabilities(entityNumber) {
  const view = currentView();
  const found = {};
  for (const { action, row } of frameOf(view).decisions.get(entityNumber) ?? []) {
    if (!isContinuous(action)) found[action] = choicesOf(view, action, row).map(({ probability }) => probability);
  }
  return found;
}

window.replay = {
  state,
  drawing,
  go,
  play,
  pause,
  probabilities,
  // The place of an entity in pixels of the canvas; null for one that is shown as a card.
  place: (entityNumber) => {
    const { x, y } = placeOf(entityNumber) ?? {};
    return x === undefined ? null : [x, y];
  },
  // The pixels of a place in the plane.
  pixels: (x, y) => {
    const transform = makeTransform(sceneOf(currentEpisode(), state.player), picture.width, picture.height);
    return [transform.x(x), transform.y(y)];
  },
  entities: () => frameOf(currentView()).entities,
  select: (entityNumber) => select(frameOf(currentView()).entities[entityNumber].key),
  attention: (entityNumber, layer = null, head = null) => {
    const weights = attentionWeights(currentView(), entityNumber, layer, head);
    return weights && [...weights];
  },
};

readColors();
connect();
readReplay(byId('replay'))
  .then((replay) => {
    if (replay.game) beginOffline(replay);
    show(replay);
    if (replay.episodes.length) followLink();
    if (state.mode === 'live') follow();
  })
  .catch(fail);
