// ---- Served pages: one follows a training, the other is a game.

const POLL = 2000; // milliseconds

// ---- Following a training

let newest = null; // name of the replay that is shown or offered

async function follow() {
  byId('live').hidden = false;
  for (;;) {
    if (newest === null || byId('follow').checked) await loadNewest();
    await new Promise((resolve) => setTimeout(resolve, POLL));
  }
}

async function loadNewest() {
  try {
    const found = await getJson('replays.json');
    if (!found.newest || found.newest === newest) return;
    const replay = checkReplay(await getJson(`${encodeURIComponent(found.newest)}.json`));
    newest = found.newest;
    show(replay);
    setText(byId('live-text'), `Evaluation at step ${found.step.toLocaleString('en')}.`);
  } catch (error) {
    const what = error instanceof Damaged ? error.message : 'The command that serves this page does not answer: it may have ended.';
    setText(byId('live-text'), what);
  }
}

async function getJson(path) {
  const response = await fetch(path, { cache: 'no-store' });
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.json();
}

// ---- A game. `draft` holds the choices of the coming step: a column for each actor, a list of numbers, or a set's columns.

const draft = new Map();
let game = null; // an `OfflineGame`; null: a server has the game
let notice = ''; // the answer to the last request, if it was refused
let isWaiting = false;

const draftKey = (action, row) => JSON.stringify([action, row]);
const draftOf = (action, row) => draft.get(draftKey(action, row)) ?? null;
const isOnLast = () => state.episode === state.replay.episodes.length - 1 && state.step === lastStep();
const isDrafting = () => state.mode === 'play' && isOnLast() && !currentEpisode().steps[state.step].done;

// Every decision of the present step as {action, row, actor}.
function pending() {
  if (!isDrafting()) return [];
  const found = Object.entries(currentView().actions ?? {});
  return found.flatMap(([action, { actors }]) => actors.map((actor, row) => ({ action, row, actor })));
}

function isOpen({ action, row }) {
  return isContinuous(action) || choicesOf(currentView(), action, row).some(({ allowed, target }) => allowed && !(isSet(action) && target === null));
}

// In a page without a server the policy decides for those whom the person has not taken over.
const isMine = ({ actor }) => game === null || game.mine.has(frameOf(currentView()).entities[actor].key);
const undecided = () => pending().filter((turn) => isOpen(turn) && isMine(turn) && !isDecided(turn));

function isDecided({ action, row }) {
  const chosen = draftOf(action, row);
  if (isSet(action)) return chosen !== null && chosen.length >= sizesOf(action, row)[0];
  return isContinuous(action) ? numbersOf(currentView(), action, row).every((item, k) => isAllowed(chosen?.[k], item)) : chosen !== null;
}

const isAllowed = (value, { low, high }) => Number.isFinite(value) && value >= low && value <= high;

function setDraft(action, row, chosen, isComplete) {
  draft.set(draftKey(action, row), chosen);
  notice = '';
  if (isComplete) selectUndecided();
  redraw();
  if (game?.mine.size && isComplete && undecided().length === 0) takeStep();
}

// The least and most entities of an actor's set.
function sizesOf(action, row) {
  const { min, max } = own(state.replay.actions, action);
  const count = choicesOf(currentView(), action, row).filter(({ allowed, target }) => allowed && target !== null).length;
  return [Math.min(min, count), Math.min(max ?? count, count)];
}

// Takes a choice. An entity comes into a set or leaves it, until there are no more to come.
function take(action, row, { column, target }) {
  if (!isSet(action)) return setDraft(action, row, column, true);
  const set = draftOf(action, row) ?? [];
  if (target === null) return setDraft(action, row, set, true);
  return setDraft(action, row, set.includes(column) ? set.filter((each) => each !== column) : [...set, column], false);
}

// Whether a choice may be taken now: nothing comes into a set that is full, and none is complete that is too small.
function mayTake(action, row, { column, target, allowed }) {
  if (!isSet(action) || !allowed) return allowed;
  const set = draftOf(action, row) ?? [];
  const [least, most] = sizesOf(action, row);
  return target === null ? set.length >= least : set.includes(column) || set.length < most;
}

// The place of a choice among those that are taken for the coming step, from 1 on; 0 if it is not.
function draftedPlace(action, row, column) {
  const chosen = draftOf(action, row);
  return isSet(action) ? (chosen ?? []).indexOf(column) + 1 : Number(chosen === column);
}

// When the selected actor has decided everything, the next one is selected.
function selectUndecided() {
  const left = undecided();
  const { entities } = frameOf(currentView());
  const selected = selectedEntity();
  if (left.length && !left.some(({ actor }) => actor === selected?.number)) state.selected = entities[left[0].actor].key;
}

// Makes an entity the choice of the selected actor, or one of its set. Returns false if it may not be.
function draftEntity(entity) {
  const selected = selectedEntity();
  if (!isDrafting() || !selected) return false;
  for (const { action, row } of frameOf(currentView()).decisions.get(selected.number) ?? []) {
    if (!selects(action)) continue;
    const choice = choicesOf(currentView(), action, row).find(({ target }) => target === entity.number);
    if (!choice || !mayTake(action, row, choice)) continue;
    take(action, row, choice);
    return true;
  }
  return false;
}

// The entities that are chosen for the coming step.
function drawDraft(view) {
  for (const { action, row, actor } of pending()) {
    if (isContinuous(action)) continue;
    for (const choice of choicesOf(view, action, row)) {
      const drafted = draftedPlace(action, row, choice.column);
      const to = choice.target === null || !drafted ? null : placeOf(choice.target);
      const place = own(state.replay.actions, action).ordered ? drafted : 0;
      if (to) drawChoice(placeOf(actor), to, { ...choice, probability: 0.25, chosen: true, place });
    }
  }
}

// ---- Numbers: a slider where both bounds are known, and a field for the exact number.

function makeInputs() {
  const slider = element('input', { type: 'range', min: '0', max: '1000' });
  const field = element('input', { type: 'number', step: 'any' });
  return { nodes: [slider, field], slider, field };
}

function fillInputs({ slider, field }, item, drafted, action, row, k) {
  const hasBounds = Number.isFinite(item.low) && Number.isFinite(item.high);
  slider.hidden = !hasBounds;
  slider.setAttribute('aria-label', item.label);
  field.setAttribute('aria-label', item.label);
  const change = (value) => {
    const values = [...(draftOf(action, row) ?? numbersOf(currentView(), action, row).map(() => null))];
    values[k] = value;
    setDraft(action, row, values, false);
  };
  slider.oninput = () => change(item.low + ((item.high - item.low) * Number(slider.value)) / 1000);
  field.oninput = () => change(field.value === '' ? null : Number(field.value));
  if (hasBounds) slider.value = String(drafted === null ? 500 : (1000 * (drafted - item.low)) / (item.high - item.low || 1));
  if (document.activeElement !== field) field.value = drafted === null ? '' : String(Number(drafted.toPrecision(6)));
}

// ---- Deciding for the rest

function randomRest() {
  for (const { action, row } of undecided()) draft.set(draftKey(action, row), randomChoice(action, row));
  redraw();
}

function randomChoice(action, row) {
  if (isContinuous(action)) return numbersOf(currentView(), action, row).map((item, k) => keptOrRandom(draftOf(action, row)?.[k], item));
  const open = choicesOf(currentView(), action, row).filter(({ allowed }) => allowed);
  if (isSet(action)) {
    const [least, most] = sizesOf(action, row);
    const shuffled = open.filter(({ target }) => target !== null).map(({ column }) => [Math.random(), column]).sort(([a], [b]) => a - b);
    return shuffled.slice(0, least + Math.floor(Math.random() * (most - least + 1))).map(([, column]) => column);
  }
  return open[Math.floor(Math.random() * open.length)].column;
}

function keptOrRandom(value, item) {
  if (isAllowed(value, item)) return value;
  if (Number.isFinite(item.low) && Number.isFinite(item.high)) return item.low + (item.high - item.low) * Math.random();
  const normal = Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  if (Number.isFinite(item.low)) return item.low + Math.abs(normal);
  return Number.isFinite(item.high) ? item.high - Math.abs(normal) : normal;
}

function advisedRest() {
  for (const { action, row } of undecided()) draft.set(draftKey(action, row), currentView().actions[action].advised[row]);
  redraw();
}

const isAdvised = () => pending().some(({ action }) => currentView().actions[action].advised);

// ---- Requests to the game

async function post(path, body) {
  if (isWaiting) return;
  isWaiting = true;
  notice = '';
  const answer = game ? answerOf(() => game[path](body)) : await ask(path, body);
  if (answer.error) notice = answer.error;
  else takeAnswer(answer);
  isWaiting = false;
  redraw();
}

function answerOf(run) {
  try {
    return run();
  } catch (error) {
    return { error: error.message };
  }
}

async function ask(path, body) {
  try {
    const headers = { 'Content-Type': 'application/json', 'X-Replay-Token': document.documentElement.dataset.token };
    const response = await fetch(path, { method: 'POST', headers, body: JSON.stringify(body) });
    return await response.json();
  } catch {
    return { error: 'The game does not answer: its command has ended.' };
  }
}

// An answer has the last steps of the last episode, and how many episodes and steps there are.
function takeAnswer({ episodes, steps, episode, tail }) {
  const known = state.replay.episodes;
  known.length = Math.min(known.length, episodes);
  if (known.length < episodes) known.push({ ...episode, steps: [] });
  const last = Object.assign(known[episodes - 1], episode);
  last.steps.length = steps - tail.length;
  last.steps.push(...tail);
  draft.clear();
  state.version++;
  listEpisodes();
  state.episode = episodes - 1;
  state.step = steps - 1;
  startEpisode();
  selectUndecided();
}

function takeStep() {
  if (currentEpisode().steps[lastStep()].done) {
    post('next', {});
    return;
  }
  if (undecided().length) return;
  const actions = {};
  for (const turn of pending()) (actions[turn.action] ??= []).push(isOpen(turn) ? draftOf(turn.action, turn.row) : isSet(turn.action) ? [] : -1);
  post('act', { actions });
}

// ---- The section of the turn

function drawTurn() {
  const isGame = state.mode === 'play';
  byId('turn').hidden = !isGame;
  if (!isGame) return;
  const left = undecided().length;
  const isOver = isOnLast() && !isDrafting();
  setText(byId('turn-text'), notice || turnText(left, isOver));
  setText(byId('take-step'), isOver ? 'Next episode' : 'Step');
  byId('take-step').disabled = isWaiting || !isOnLast() || left > 0;
  byId('random-rest').disabled = isWaiting || left === 0;
  byId('advised-rest').hidden = !isAdvised();
  byId('advised-rest').disabled = isWaiting || left === 0;
  byId('undo').disabled = isWaiting || (state.replay.episodes.length === 1 && lastStep() === 0);
  byId('restart').disabled = isWaiting || lastStep() === 0;
  if (game) drawOffline();
}

function turnText(left, isOver) {
  if (!isOnLast()) return 'This step is over. Press End to go back to the present one.';
  if (isOver) return `The episode has ended with a reward of ${number(currentEpisode().reward)}.`;
  if (pending().length === 0) return 'Nobody acts at this step.';
  if (left === 0) return game ? offlineText() : 'Everybody has decided.';
  return `${left} ${left === 1 ? 'decision is' : 'decisions are'} left. Choose in the list below, or click an entity to select it.`;
}

// Digits take the first choices of the selected actor, Enter steps.
function turnKeys(key) {
  if (state.mode !== 'play') return null;
  if (key === 'Enter') return takeStep;
  if (key === 'u') return () => post('undo', {});
  if (game && key === 'Delete') return removeSelected;
  const selected = isDrafting() && /^[0-9]$/.test(key) ? selectedEntity() : null;
  const turn = selected && pending().find((each) => each.actor === selected.number && !isContinuous(each.action) && (isSet(each.action) || !isDecided(each)));
  const choice = turn && choicesOf(currentView(), turn.action, turn.row)[Number(key)];
  return choice && mayTake(turn.action, turn.row, choice) ? () => take(turn.action, turn.row, choice) : null;
}
