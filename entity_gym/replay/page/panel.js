// ---- The panel: the step, the selected entity, its decision, and its attention.

const MOST_TARGETS = 12; // bars of attention, and of entities to select
const byId = (id) => document.getElementById(id);

// Fills a container with one child for each item. A child is made anew only if the key of its item has changed, so that the
// focus stays where it is while an episode plays.
function fillList(container, items, keyOf, make, fill) {
  items.forEach((item, i) => {
    const key = keyOf(item);
    let child = container.children[i];
    if (child?.listKey !== key) {
      const made = make(item);
      made.node.listKey = key;
      made.node.parts = made;
      if (child) child.replaceWith(made.node);
      else container.append(made.node);
      child = made.node;
    }
    fill(child.parts, item);
  });
  while (container.children.length > items.length) container.lastElementChild.remove();
}

function drawPanel() {
  drawMoment();
  drawActorList();
  const selected = selectedEntity();
  drawFeatures(selected);
  drawDecisions(selected);
  drawAttentionList(selected);
}

// ---- The step

function drawMoment() {
  const episode = currentEpisode();
  const step = episode.steps[state.step];
  const view = currentView();
  const total = sum(seriesOf(episode, state.player).reward.slice(0, state.step + 1));
  const pairs = [['Reward', state.step ? number(rewardOf(step, state.player)) : '–'], ['Reward so far', number(total)]];
  if (view.value != null) pairs.push(['Expected from here', number(view.value)]);
  if (state.replay.players.length > 1 && step.rewards) {
    state.replay.players.forEach((name, i) => pairs.push([`Reward of ${name}`, number(step.rewards[i])]));
  }
  if (step.done) {
    pairs.push(['Episode', step.truncated ? 'is cut off here' : 'ends here']);
    for (const [key, value] of Object.entries(isObject(episode.info) ? episode.info : {})) pairs.push([key, shownValue(value)]);
  }
  fillList(byId('moment'), pairs, () => 'pair', makePair, ({ term, value }, [name, text]) => {
    setText(term, short(name, 200));
    setText(value, text);
  });
}

function makePair() {
  const term = element('bdi', { className: 'name' });
  const value = element('bdi', { className: 'name' });
  return { node: element('div', {}, element('dt', {}, term), element('dd', {}, value)), term, value };
}

const shownValue = (value) => (typeof value === 'number' ? number(value) : short(typeof value === 'string' ? value : JSON.stringify(value), 200));

// ---- The list of entities

let listed = null;

function drawActorList() {
  const list = byId('actor');
  const { entities, decisions } = frameOf(currentView());
  const signature = entities.map(({ key, number: k }) => key + (decisions.has(k) ? '*' : '')).join();
  const isListed = listed === signature;
  // To make hundreds of options takes longer than to draw a step: while it plays, the list may lag behind.
  if (!isListed && !(state.playing && listed !== null)) {
    listed = signature;
    const group = (label, members) => element('optgroup', { label }, ...members.map((entity) => new Option(short(entityName(entity), 60), entity.key)));
    const acting = entities.filter(({ number: k }) => decisions.has(k));
    const others = entities.filter(({ number: k }) => !decisions.has(k));
    const groups = [acting.length ? group('acts now', acting) : '', others.length ? group('others', others) : ''];
    list.replaceChildren(new Option('none', ''), ...groups);
  }
  const value = selectedEntity()?.key ?? '';
  if (list.value !== value) list.value = value;
}

// ---- The selected entity

function drawFeatures(entity) {
  const table = byId('features');
  table.hidden = !entity || entity.values.length === 0;
  setText(byId('selected-note'), noteOn(entity));
  if (!entity) return;
  const rows = [null, ...featureNames(entity.type).map((name, i) => ({ name, value: entity.values[i] }))];
  fillList(table, rows, (row) => (row ? 'feature' : 'head'), makeFeature, (parts, row) => {
    if (!row) return;
    setText(parts.name, short(row.name, 200));
    setText(parts.value, number(row.value));
  });
}

function makeFeature(row) {
  const cell = (tag, text) => element(tag, { className: 'number', textContent: text });
  if (!row) return { node: element('tr', {}, element('th', { scope: 'col', textContent: 'feature' }), cell('th', 'value')) };
  const name = element('bdi', { className: 'name' });
  const value = cell('td', '');
  return { node: element('tr', {}, element('th', { scope: 'row' }, name), value), name, value };
}

function noteOn(entity) {
  if (!state.selected) return 'Click an entity in the picture or in a table, or choose one here.';
  if (!entity) return 'The entity that was chosen is not there at this step.';
  return entity.hidden ? 'Hidden from the policy; the value function sees it.' : memoryOf(entity);
}

// What the policy remembers of an entity has changed this much in the step; empty where it remembers nothing.
const memoryOf = ({ memory }) => (memory === null ? '' : `Memory changed by ${percent(memory)}.`);

// ---- The decision

function drawDecisions(entity) {
  const view = currentView();
  const decisions = (entity && frameOf(view).decisions.get(entity.number)) || [];
  byId('decision-section').hidden = decisions.length === 0;
  const keyOf = ({ action }) => JSON.stringify([action, state.mode, isDrafting()]);
  fillList(byId('decisions'), decisions, keyOf, makeDecision, (parts, { action, row }) => {
    const entropy = view.actions[action].entropy?.[row];
    setText(parts.entropy, entropy == null ? '' : `entropy ${number(entropy, 3)}`);
    if (isContinuous(action)) fillNumbers(parts, view, action, row);
    else fillChoices(parts, view, action, row);
  });
}

function makeDecision({ action }) {
  const entropy = element('span', { className: 'note' });
  const list = element('ol', { className: 'choices' });
  const more = element('p', { className: 'note' });
  const node = element('div', { className: 'decision' }, element('h3', {}, nameElement(action), ' ', entropy), list, more);
  return { node, entropy, list, more };
}

function fillChoices(parts, view, action, row) {
  const all = choicesOf(view, action, row);
  const isLong = all.length > MOST_TARGETS;
  const byProbability = (a, b) => (b.chosen - a.chosen) || (a.place - b.place) || ((b.probability ?? 0) - (a.probability ?? 0));
  const shown = isLong && !isDrafting() ? [...all].sort(byProbability).slice(0, MOST_TARGETS) : all;
  const rest = 1 - sum(shown.map(({ probability }) => probability ?? 0));
  const restText = isSet(action) || all[0]?.probability == null ? '' : ` with ${percent(Math.max(rest, 0))} together`;
  setText(parts.more, shown.length < all.length ? `and ${all.length - shown.length} more${restText}` : '');
  const isButton = isDrafting() || selects(action);
  fillList(parts.list, shown, () => `${isButton} ${isDrafting()}`, () => makeChoice(isButton), (line, choice) => fillChoice(line, choice, view, action, row));
}

function makeChoice(isButton) {
  const label = element('bdi', { className: 'name' });
  const className = isDrafting() ? 'choice-button' : 'link';
  const head = isButton ? element('button', { type: 'button', className }, label) : element('span', { className: 'label' }, label);
  const mark = element('span', { className: 'mark' });
  const bar = makeBar('choice');
  const parts = { node: element('li', {}, mark, head, bar.line), label, mark, bar, act: null };
  if (isButton) head.addEventListener('click', () => parts.act());
  return { ...parts, head, parts };
}

function fillChoice(line, choice, view, action, row) {
  const drafted = draftedPlace(action, row, choice.column);
  const isMarked = isDrafting() ? drafted > 0 : choice.chosen;
  const place = isDrafting() ? own(state.replay.actions, action).ordered && drafted : choice.place;
  setText(line.label, short(choice.label, 200));
  setText(line.mark, isMarked ? String((choice.target !== null && place) || '✓') : '');
  line.mark.title = isMarked ? 'taken' : '';
  line.node.classList.toggle('taken', isMarked);
  line.node.classList.toggle('closed', !choice.allowed);
  line.node.classList.toggle('plain', choice.probability === null);
  line.node.title = choice.allowed ? '' : 'not allowed here';
  if (line.head.tagName === 'BUTTON') {
    line.head.disabled = isDrafting() ? !mayTake(action, row, choice) : choice.target === null;
    line.head.setAttribute('aria-pressed', String(isMarked));
  }
  line.parts.act = () => (isDrafting() ? take(action, row, choice) : select(frameOf(view).entities[choice.target].key));
  fillBar(line.bar, choice.probability, isMarked);
}

function fillNumbers(parts, view, action, row) {
  const numbers = numbersOf(view, action, row);
  fillList(parts.list, numbers, () => String(isDrafting()), makeNumber, (line, item) => {
    const drafted = draftOf(action, row)?.[numbers.indexOf(item)] ?? null;
    setText(line.label, short(item.label, 200));
    setText(line.value, number(isDrafting() ? drafted : item.chosen));
    const isKnown = item.mean !== null && item.std !== null;
    setText(line.spread, isKnown ? `mean ${number(item.mean, 3)}, std ${number(item.std, 3)}` : '');
    line.canvas.hidden = !isKnown;
    if (isKnown) drawDensity(line.canvas, item);
    if (line.inputs) fillInputs(line.inputs, item, drafted, action, row, numbers.indexOf(item));
  });
}

function makeNumber() {
  const [label, value, spread] = [element('bdi', { className: 'name' }), element('strong'), element('span', { className: 'note' })];
  const canvas = element('canvas', { className: 'density', role: 'img', 'aria-label': 'density of the number, and the number taken' });
  const inputs = isDrafting() ? makeInputs() : null;
  const node = element('li', { className: 'of-number' }, element('p', {}, label, ' ', value, ' ', spread), canvas, ...(inputs?.nodes ?? []));
  return { node, label, value, spread, canvas, inputs };
}

// ---- Attention

function drawAttentionList(entity) {
  const view = currentView();
  const weights = entity && attentionWeights(view, entity.number, state.layer, state.head);
  byId('attention-section').hidden = !weights;
  if (!weights) return;
  const { entities } = frameOf(view);
  const shown = [...weights.keys()].filter((k) => entities[k] && weights[k] > 0).sort((a, b) => weights[b] - weights[a]);
  fillList(byId('attention'), shown.slice(0, MOST_TARGETS), () => 'target', makeTarget, (parts, k) => {
    setText(parts.label, k === entity.number ? 'itself' : short(entityName(entities[k]), 200));
    parts.parts.act = () => select(entities[k].key);
    fillBar(parts.bar, weights[k]);
  });
}

function makeTarget() {
  const label = element('bdi', { className: 'name' });
  const button = element('button', { type: 'button', className: 'link' }, label);
  const bar = makeBar('attention');
  const parts = { node: element('div', { className: 'target' }, button, bar.line), label, bar, act: null };
  button.addEventListener('click', () => parts.act());
  return { ...parts, parts };
}

function fillLayerLists() {
  const { layers = 0, heads = 0 } = state.replay.network ?? {};
  const fill = (id, count, chosen) => {
    const options = Array.from({ length: count }, (_, i) => new Option(String(i + 1), String(i)));
    byId(id).replaceChildren(new Option('mean', ''), ...options);
    byId(id).value = chosen === null ? '' : String(chosen);
  };
  fill('layer', layers, state.layer);
  fill('head', heads, state.head);
}

// ---- The tooltip

function showTooltip(entity, event) {
  if (!entity) return;
  const names = featureNames(entity.type);
  const rows = entity.values.slice(0, 14).map((value, i) => (
    element('tr', {}, element('th', { scope: 'row' }, nameElement(names[i])), element('td', { textContent: number(value) }))
  ));
  const more = entity.values.length > rows.length ? [element('p', { textContent: `and ${entity.values.length - rows.length} more` })] : [];
  const title = element('strong', {}, nameElement(entityName(entity)), entity.hidden ? ' (hidden from the policy)' : '');
  const memory = entity.memory === null ? [] : [element('p', { textContent: memoryOf(entity) })];
  place([title, element('table', {}, ...rows), ...more, ...memory], event);
}

function showText(text, event) {
  place([text], event);
}

function place(content, event) {
  const tooltip = byId('tooltip');
  tooltip.replaceChildren(...content);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  tooltip.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - width - 4))}px`;
  tooltip.style.top = `${event.clientY + 14 + height > window.innerHeight ? Math.max(4, event.clientY - height - 10) : event.clientY + 14}px`;
}

function hideTooltip() {
  byId('tooltip').hidden = true;
}
