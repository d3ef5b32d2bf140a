// ---- Cards: tables of the types without a place, and the legend with its switches.

const MOST_CARDS = 300; // rows of one type

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes('-') || name === 'role' || name === 'scope') made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

// A name from the world: isolated, so that right-to-left text stays in its place, and cut by the style sheet where it is long.
function nameElement(text) {
  return element('bdi', { className: 'name', textContent: short(text, 400), title: short(text, 200) });
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ---- Tables

const tables = new Map(); // type -> {box, body, rows}
let tablesOf = null; // the scene and the replay that they were made for

function drawCards() {
  const scene = sceneOf(currentEpisode(), state.player);
  if (tablesOf !== scene) makeTables(scene);
  const view = currentView();
  const marks = marksOf(view);
  const byType = new Map([...tables.keys()].map((type) => [type, []]));
  for (const entity of frameOf(view).entities) if (isShown(entity)) byType.get(entity.type)?.push(entity);
  for (const [type, table] of tables) fillTable(table, byType.get(type), marks);
}

function makeTables(scene) {
  tablesOf = scene;
  tables.clear();
  const types = state.replay.order.filter((type) => !scene.styles.get(type).place);
  if (hasGlobal(state.replay) && !scene.styles.get(GLOBAL)?.place) types.push(GLOBAL);
  for (const type of types) tables.set(type, makeTable(type, scene.styles.get(type)));
  document.getElementById('cards').replaceChildren(...[...tables.values()].map(({ box }) => box));
}

function makeTable(type, style) {
  const title = element('h2', {}, style ? swatch(style) : '', nameElement(type === GLOBAL ? 'world' : type));
  const names = featureNames(type);
  const heads = names.map((name) => element('th', { scope: 'col', className: 'number' }, nameElement(name)));
  // Bars stand before the features, which may be too many for the window.
  const head = element('tr', {}, element('th', { scope: 'col' }, 'entity'), element('th', { className: 'bars' }), ...heads);
  const body = element('tbody');
  const table = element('table', {}, element('thead', {}, head), body);
  const more = element('p', { className: 'note' });
  const box = element('div', { className: 'card' }, title, element('div', { className: 'scroll' }, table), more);
  return { box, body, more, rows: [], width: names.length };
}

function fillTable(table, entities, marks) {
  const shown = entities.slice(0, MOST_CARDS);
  table.box.hidden = entities.length === 0;
  setText(table.more, entities.length > shown.length ? `and ${entities.length - shown.length} more` : '');
  while (table.rows.length < shown.length) table.rows.push(makeRow(table));
  table.rows.forEach((row, i) => {
    row.line.hidden = i >= shown.length;
    if (!row.line.hidden) fillRow(row, shown[i], marks);
  });
}

function makeRow(table) {
  const button = element('button', { type: 'button', className: 'link' });
  const cells = Array.from({ length: table.width }, () => element('td', { className: 'number' }));
  const attention = makeBar('attention');
  const choice = makeBar('choice');
  const bars = element('td', { className: 'bars' }, choice.line, attention.line);
  const label = element('bdi', { className: 'name note' });
  const swatch = element('span', { className: 'color' });
  const head = element('th', { scope: 'row' }, element('span', { className: 'head' }, swatch, button, label));
  const line = element('tr', {}, head, bars, ...cells);
  const row = { line, button, label, swatch, cells, attention, choice, entity: null };
  button.addEventListener('click', (event) => pick(row.entity, event.shiftKey));
  line.addEventListener('pointermove', (event) => showTooltip(row.entity, event));
  line.addEventListener('pointerleave', hideTooltip);
  table.body.append(line);
  return row;
}

function fillRow(row, entity, { attention, choices }) {
  row.entity = entity;
  setText(row.button, short(entityName(entity), 40));
  const style = sceneOf(currentEpisode(), state.player).styles.get(entity.type);
  setText(row.label, style?.labelAdds ? labelOf(entity, style) : '');
  row.swatch.hidden = !style || style.colorBy === null;
  if (!row.swatch.hidden) row.swatch.style.background = colorOf(entity, style);
  row.cells.forEach((cell, i) => setText(cell, number(entity.values[i])));
  row.line.classList.toggle('selected', entity.key === state.selected);
  row.line.classList.toggle('hidden-entity', entity.hidden);
  const choice = choices.get(entity.number);
  row.line.classList.toggle('chosen', Boolean(choice?.chosen || choice?.drafted));
  fillBar(row.attention, attention?.[entity.number] ?? null);
  fillBar(row.choice, choice ? choice.probability : null, choice?.chosen);
}

// What the selected entity attends to, and the probabilities with which it selects, by entity number.
function marksOf(view) {
  const selected = selectedEntity();
  const attention = selected && state.showAttention ? attentionWeights(view, selected.number, state.layer, state.head) : null;
  const choices = new Map();
  for (const { action, row } of (selected && state.showChoices && frameOf(view).decisions.get(selected.number)) || []) {
    if (isContinuous(action)) continue;
    for (const choice of choicesOf(view, action, row)) {
      if (choice.target === null) continue;
      choices.set(choice.target, { ...choice, drafted: draftedPlace(action, row, choice.column) > 0 });
    }
  }
  return { attention, choices };
}

function makeBar(kind) {
  const fill = element('span', { className: 'fill' });
  const text = element('span', { className: 'amount' });
  return { line: element('span', { className: `bar ${kind}` }, element('span', { className: 'track' }, fill), text), fill, text };
}

function fillBar({ line, fill, text }, share, isChosen = false) {
  line.hidden = share === null;
  if (share === null) return;
  fill.style.width = `${(100 * share).toFixed(2)}%`;
  line.classList.toggle('taken', isChosen);
  setText(text, percent(share));
}

// ---- The legend

const legend = new Map(); // type -> the element with its count

function makeLegend() {
  const scene = sceneOf(currentEpisode(), state.player);
  legend.clear();
  const types = [...scene.styles.keys()];
  const items = types.map((type) => {
    const count = element('span', { className: 'count' });
    legend.set(type, count);
    return makeSwitch([swatch(scene.styles.get(type)), nameElement(type === GLOBAL ? 'world' : type), count], !state.off.has(type), (isOn) => {
      if (isOn) state.off.delete(type);
      else state.off.add(type);
    });
  });
  if (anyView(({ hidden }) => hidden && Object.keys(hidden).length)) items.push(makeSwitch(['hidden from the policy'], state.showHidden, (isOn) => (state.showHidden = isOn)));
  if (Object.keys(state.replay.actions).some(selects)) {
    items.push(makeSwitch([element('span', { className: 'key choice' }), 'choices'], state.showChoices, (isOn) => (state.showChoices = isOn)));
  }
  if (anyView(({ attention }) => attention)) {
    items.push(makeSwitch([element('span', { className: 'key attention' }), 'attention'], state.showAttention, (isOn) => (state.showAttention = isOn)));
  }
  document.getElementById('legend').replaceChildren(...items);
}

function anyView(test) {
  return state.replay.episodes.some(({ steps }) => steps.some(({ views }) => views.some(test)));
}

function makeSwitch(content, isOn, change) {
  const box = element('input', { type: 'checkbox', checked: isOn });
  box.addEventListener('change', () => {
    change(box.checked);
    redraw();
  });
  return element('label', { className: 'switch' }, box, ...content);
}

function drawLegend() {
  const counts = new Map();
  for (const { type } of frameOf(currentView()).entities) counts.set(type, (counts.get(type) ?? 0) + 1);
  for (const [type, node] of legend) setText(node, String(counts.get(type) ?? 0));
}

// An edge for a colour that is hardly seen on the ground.
function strokeThin(to) {
  to.strokeStyle = colors.faint;
  to.lineWidth = 1;
  to.stroke();
}

// The shape of a type; a plain square where it has no place.
function swatch(style) {
  const ratio = 2;
  const canvas = element('canvas', { width: 14 * ratio, height: 14 * ratio, className: 'swatch', 'aria-hidden': 'true' });
  const to = canvas.getContext('2d');
  to.scale(ratio, ratio);
  tracePath(style.place ? style.shape : 'square', 7, 7, 6, null, to);
  to.fillStyle = to.strokeStyle = style.color;
  to.lineWidth = 2.5;
  if (style.place && style.shape === 'ring') to.stroke();
  else to.fill();
  if (isNearGround(style.color)) strokeThin(to);
  return canvas;
}
