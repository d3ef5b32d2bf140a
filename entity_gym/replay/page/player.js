// ---- The player: the present moment, playing, keys, and links to a moment.

const SPEEDS = [0.5, 1, 2, 4, 8, 15, 30, 60]; // steps a second
const END_PAUSE = 900; // milliseconds at the end of an episode before the next one begins

const KEYS = [
  ['space', 'play or pause'],
  ['← →', 'one step back or on'],
  ['Home End', 'first or last step of the episode'],
  ['n p', 'next or previous episode'],
  ['+ −', 'faster or slower'],
  ['r s', 'largest reward, largest surprise'],
  ['Esc', 'choose no entity'],
  ['?', 'this list'],
];

const state = {
  mode: document.documentElement.dataset.mode,
  replay: null,
  version: 0, // grows with each replay that is loaded
  episode: 0,
  step: 0,
  player: 0,
  selected: null, // key of an entity
  playing: false,
  speed: 4,
  layer: null,
  head: null,
  off: new Set(), // types that are not shown
  showHidden: true,
  showAttention: true,
  showChoices: true,
};

const currentEpisode = () => state.replay.episodes[state.episode];
const currentView = () => currentEpisode().steps[state.step].views[state.player];
const lastStep = () => currentEpisode().steps.length - 1;
const selectedEntity = () => (state.selected === null ? null : frameOf(currentView()).byKey.get(state.selected) ?? null);
const clamp = (value, most) => Math.min(Math.max(Number.isFinite(value) ? Math.trunc(value) : 0, 0), most);

// ---- Moving

function go(episode, step) {
  const isOther = episode !== state.episode;
  state.episode = clamp(episode, state.replay.episodes.length - 1);
  state.step = clamp(step, lastStep());
  if (isOther) startEpisode();
  redraw();
  keepLink();
}

function startEpisode() {
  byId('episode').value = String(state.episode);
  makeLegend();
  const { reward, surprise } = seriesOf(currentEpisode(), state.player);
  const [most, oddest] = [largestReward(), largestSurprise()];
  byId('to-reward').title = `Step ${most}: reward ${number(reward[most])} (r)`;
  byId('to-surprise').title = `Step ${oddest}: ${surprise[oddest].reason} (s)`;
  byId('scrub').max = String(lastStep());
}

function indexOfLargest(numbers) {
  return numbers.reduce((best, number, i) => (number > numbers[best] ? i : best), 0);
}

const largestReward = () => indexOfLargest(seriesOf(currentEpisode(), state.player).reward.map((reward) => Math.abs(reward ?? 0)));
const largestSurprise = () => indexOfLargest(seriesOf(currentEpisode(), state.player).surprise.map(({ amount }) => amount));

function stepBy(count) {
  pause();
  go(state.episode, state.step + count);
}

function nextEpisode() {
  go(state.episode + 1, state.episode + 1 < state.replay.episodes.length ? 0 : lastStep());
}

function previousEpisode() {
  go(state.step > 0 ? state.episode : state.episode - 1, 0);
}

function jump(step) {
  pause();
  go(state.episode, step);
}

function select(key) {
  state.selected = key;
  redraw();
}

// A click on an entity: in a game it may be the choice of the selected actor.
function pick(entity, isOther = false) {
  if (!isOther && draftEntity(entity)) return;
  select(entity.key);
}

// ---- Playing

let clock = null; // {time, owed}: of the last frame, and the share of a step that has passed since the last step

function play() {
  if (state.playing || state.replay.episodes.length === 0) return;
  const isOver = state.step === lastStep() && state.episode === state.replay.episodes.length - 1 && !playsOn();
  if (isOver) go(state.replay.episodes.length > 1 ? 0 : state.episode, 0);
  state.playing = true;
  clock = null;
  requestAnimationFrame(tick);
  redraw();
}

function pause() {
  if (!state.playing) return;
  state.playing = false;
  redraw();
  keepLink();
}

function tick(time) {
  if (!state.playing) return;
  requestAnimationFrame(tick);
  clock ??= { time, owed: 0 };
  const elapsed = Math.min(time - clock.time, 1000);
  if (state.step === lastStep() && !playsOn()) {
    if (time - clock.time < END_PAUSE) return;
    clock = { time, owed: 0 };
    if (state.episode + 1 < state.replay.episodes.length) go(state.episode + 1, 0);
    else pause();
    return;
  }
  const owed = clock.owed + (elapsed / 1000) * state.speed;
  clock = { time, owed: owed % 1 };
  if (owed < 1) return;
  if (state.step < lastStep()) go(state.episode, Math.min(state.step + Math.floor(owed), lastStep()));
  else if (undecided().length) pause();
  else takeStep();
}

// Whether the episode is one that goes on while it is played: that of a game whose policy is in the page.
const playsOn = () => game !== null && isDrafting();

function changeSpeed(change) {
  const index = clamp(SPEEDS.indexOf(state.speed) + change, SPEEDS.length - 1);
  state.speed = SPEEDS[index];
  byId('speed').value = String(state.speed);
}

// ---- Links

let linkTimer = null;

// Browsers limit how often an address may change, so it follows when the picture has stood still for a moment.
function keepLink() {
  if (state.mode === 'play') return;
  clearTimeout(linkTimer);
  linkTimer = setTimeout(() => {
    const player = state.player ? `&player=${state.player + 1}` : '';
    try {
      history.replaceState(null, '', `#episode=${state.episode + 1}&step=${state.step}${player}`);
    } catch {
      // A page inside of another one, such as a panel of a dashboard, may have no address of its own.
    }
  }, 200);
}

function followLink() {
  const link = new URLSearchParams(location.hash.slice(1));
  if (!link.has('episode') && !link.has('step')) return;
  pause();
  if (link.has('player')) changePlayer(clamp(Number(link.get('player')) - 1, state.replay.players.length - 1));
  go(clamp(Number(link.get('episode') ?? 1) - 1, state.replay.episodes.length - 1), clamp(Number(link.get('step')), Infinity));
}

function changePlayer(player) {
  state.player = player;
  byId('player').value = String(player);
  startEpisode();
  redraw();
  keepLink();
}

// ---- Keys

const keyActions = {
  ' ': () => (state.playing ? pause() : play()),
  ArrowLeft: () => stepBy(-1),
  ArrowRight: () => stepBy(1),
  Home: () => jump(0),
  End: () => jump(lastStep()),
  n: nextEpisode,
  p: previousEpisode,
  '+': () => changeSpeed(1),
  '=': () => changeSpeed(1),
  '-': () => changeSpeed(-1),
  r: () => jump(largestReward()),
  s: () => jump(largestSurprise()),
  Escape: () => select(null),
  '?': () => byId('keys').showModal(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId('keys').open || state.replay.episodes.length === 0) return;
  const tag = event.target.tagName;
  const isTyping = tag === 'SELECT' || (tag === 'INPUT' && event.target.type !== 'checkbox');
  if (isTyping && event.key !== 'Escape') return;
  if ((event.key === ' ' || event.key === 'Enter') && (tag === 'BUTTON' || tag === 'INPUT')) return; // it presses that
  const action = turnKeys(event.key) ?? own(keyActions, event.key);
  if (!action) return;
  event.preventDefault();
  action();
}

function drawPlayer() {
  const last = lastStep();
  byId('scrub').max = String(last);
  byId('scrub').value = String(state.step);
  byId('scrub').setAttribute('aria-valuetext', `step ${state.step} of ${last}`);
  setText(byId('place'), `step ${state.step} / ${last}`);
  const button = byId('play');
  button.classList.toggle('playing', state.playing);
  button.setAttribute('aria-label', state.playing ? 'Pause' : 'Play');
  byId('back').disabled = state.step === 0;
  byId('forward').disabled = state.step === last;
  byId('previous-episode').disabled = state.episode === 0 && state.step === 0;
  byId('next-episode').disabled = state.episode === state.replay.episodes.length - 1;
}
