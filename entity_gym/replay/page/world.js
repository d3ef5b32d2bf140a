// ---- The world: a canvas with the entities that have a place in the plane.

// Eight colours of Okabe and Ito's palette, darkened where they would vanish on white; shapes differ as well.
const PALETTE = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#8c6bb1', '#7f7f7f'];
const SHAPES = ['circle', 'square', 'triangle', 'diamond', 'cross', 'ring'];
const MARGIN = 14; // pixels around the world
const MOST_LINES = 24; // of attention
const LARGEST_GRID = 128; // cells: larger ones are drawn as a plane

const world = document.getElementById('world');
const pen = world.getContext('2d');
const picture = { width: 0, height: 0, drawn: [], frames: 0 };

// ---- Scenes: how an episode is drawn, as one player sees it.

const scenes = new WeakMap();

function sceneOf(episode, player) {
  if (!scenes.has(episode)) scenes.set(episode, []);
  const known = scenes.get(episode);
  known[player] ??= makeScene(episode);
  growScene(known[player], episode, player);
  return known[player];
}

function makeScene(episode) {
  const hints = isObject(episode.drawing) ? episode.drawing : {};
  const styles = new Map();
  state.replay.order.forEach((type, i) => styles.set(type, makeStyle(type, i, own(hints.types, type) ?? {})));
  const globalHint = own(hints.types, GLOBAL);
  if (globalHint) styles.set(GLOBAL, makeStyle(GLOBAL, styles.size, globalHint));
  const bounds = Array.isArray(hints.bounds) && hints.bounds.length === 4 && hints.bounds.every(Number.isFinite) ? hints.bounds : null;
  return {
    styles,
    yUp: Boolean(hints.y_up),
    gridHint: hints.grid,
    boundsHint: bounds,
    least: [Infinity, Infinity],
    most: [-Infinity, -Infinity],
    isWhole: true,
    stepsSeen: 0,
    isPlane: [...styles.values()].some((style) => style.place),
  };
}

// A style has `place`: the columns of x and y, or null for a type that is shown as cards.
function makeStyle(type, index, hint) {
  const names = featureNames(type);
  const column = (name) => (names.indexOf(name) < 0 ? null : names.indexOf(name));
  const position = Array.isArray(hint.position) ? hint.position : ['x', 'y'];
  const [x, y] = position.map(column);
  const angles = names.filter((name) => featureKind(type, name) === 'angle');
  return {
    place: x != null && y != null ? [x, y] : null,
    color: /^#[0-9a-f]{6}$/i.test(hint.color ?? '') ? hint.color : PALETTE[index % PALETTE.length],
    colorBy: hint.color_by === undefined ? null : column(hint.color_by),
    shape: SHAPES.includes(hint.shape) ? hint.shape : SHAPES[index % SHAPES.length],
    size: hint.size > 0 ? hint.size : null,
    label: typeof hint.label === 'string' ? labelParts(hint.label, column) : null,
    // In a table, a label that is one number would repeat it.
    labelAdds: /[^{}\s]\s*\{|\}\s*[^{}\s]/.test(hint.label ?? ''),
    angle: hint.angle !== undefined ? column(hint.angle) : angles.length === 1 ? column(angles[0]) : null,
    trail: hint.trail > 0 ? hint.trail : 0,
    layer: Number.isFinite(hint.layer) ? hint.layer : 0,
  };
}

// "bank {money}" -> ["bank ", 3]: texts, and columns of features.
function labelParts(template, column) {
  return template.split(/\{([^{}]*)\}/).map((part, i) => (i % 2 ? column(part) ?? `{${part}}` : part));
}

function colorOf(entity, style) {
  if (style.colorBy === null) return style.color;
  return PALETTE[Math.abs(Math.round(entity.values[style.colorBy])) % PALETTE.length] ?? style.color;
}

function labelOf(entity, style) {
  if (!style.label) return '';
  return short(style.label.map((part) => (typeof part === 'number' ? number(entity.values[part], 3) : part)).join(''), 24);
}

// Bounds hold every position of the episode, so that the picture stands still while it plays.
function growScene(scene, episode, player) {
  scene.stepsSeen = Math.min(scene.stepsSeen, episode.steps.length); // a step of a game may have been undone
  for (; scene.stepsSeen < episode.steps.length; scene.stepsSeen++) {
    const { features, globals } = episode.steps[scene.stepsSeen].views[player];
    for (const [type, { place }] of scene.styles) {
      for (const values of (place && (type === GLOBAL ? globals && [globals] : own(features, type))) || []) {
        place.forEach((column, axis) => {
          const value = values[column];
          if (!Number.isFinite(value)) return;
          scene.least[axis] = Math.min(scene.least[axis], value);
          scene.most[axis] = Math.max(scene.most[axis], value);
          scene.isWhole &&= Number.isInteger(value);
        });
      }
    }
  }
}

// The bounds of the hints, and whatever lies outside of them at some step.
function boundsOf({ least, most, boundsHint }) {
  if (least[0] > most[0]) return boundsHint ?? [0, 0, 1, 1];
  if (!boundsHint) return [...least, ...most];
  const [left, top, right, bottom] = boundsHint;
  return [Math.min(left, least[0]), Math.min(top, least[1]), Math.max(right, most[0]), Math.max(bottom, most[1])];
}

// Returns {left, top, right, bottom, cell}: the part of the plane that is shown, and the size of a cell or null without a grid.
function shownPlane(scene) {
  const [left, top, right, bottom] = boundsOf(scene);
  const looksLikeGrid = scene.isWhole && Math.max(right - left, bottom - top) < LARGEST_GRID;
  if (scene.gridHint ?? looksLikeGrid) {
    return { left: left - 0.5, top: top - 0.5, right: right + 0.5, bottom: bottom + 0.5, cell: 1 };
  }
  const extent = Math.max(right - left, bottom - top) || 1;
  const room = scene.boundsHint ? 0 : 0.05 * extent;
  // A world on a line gets some height, too.
  const [moreX, moreY] = [right - left, bottom - top].map((length) => room + Math.max(0, (0.2 * extent - length) / 2));
  return { left: left - moreX, top: top - moreY, right: right + moreX, bottom: bottom + moreY, cell: null };
}

// ---- From the plane to pixels

function makeTransform(scene, width, height) {
  const plane = shownPlane(scene);
  const scale = Math.min((width - 2 * MARGIN) / (plane.right - plane.left), (height - 2 * MARGIN) / (plane.bottom - plane.top));
  const x0 = (width - scale * (plane.right - plane.left)) / 2;
  const y0 = (height - scale * (plane.bottom - plane.top)) / 2;
  return {
    plane,
    scale,
    x: (x) => x0 + scale * (x - plane.left),
    y: (y) => (scene.yUp ? y0 + scale * (plane.bottom - y) : y0 + scale * (y - plane.top)),
  };
}

function fitCanvas(scene) {
  const box = document.getElementById('world-box');
  box.hidden = !scene.isPlane;
  if (box.hidden) return;
  const { left, top, right, bottom } = shownPlane(scene);
  const width = Math.max(box.clientWidth, 100);
  const aspect = Math.min(Math.max((bottom - top) / (right - left), 0.25), 2);
  const height = Math.round(Math.min(Math.max(width * aspect, 180), Math.max(240, 0.6 * window.innerHeight)));
  const ratio = window.devicePixelRatio || 1;
  const [pixelWidth, pixelHeight] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (world.width !== pixelWidth || world.height !== pixelHeight) {
    [world.width, world.height] = [pixelWidth, pixelHeight];
    world.style.height = `${height}px`;
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  Object.assign(picture, { width, height });
}

// ---- Drawing

function drawWorld() {
  const episode = currentEpisode();
  const scene = sceneOf(episode, state.player);
  fitCanvas(scene);
  picture.frames++;
  picture.drawn = [];
  if (!scene.isPlane) return;
  const { width, height } = picture;
  const transform = makeTransform(scene, width, height);
  pen.clearRect(0, 0, width, height);
  drawGround(transform);
  const view = currentView();
  picture.drawn = placeEntities(frameOf(view), scene, transform);
  for (const [type, style] of scene.styles) if (style.trail && !state.off.has(type)) drawTrails(type, style, transform);
  const selected = selectedEntity();
  if (selected && state.showAttention) drawAttention(view, selected);
  for (const item of picture.drawn) drawEntity(item, item.entity === selected, scene.yUp);
  if (selected && state.showChoices) drawArrows(view, selected);
  if (state.mode === 'play') drawDraft(view);
  world.setAttribute('aria-label', describeFrame());
}

// Returns [{entity, style, x, y, radius}] of all that is switched on, lowest layer first.
function placeEntities(frame, scene, transform) {
  const placed = [];
  const defaultSize = transform.plane.cell ? 0.78 : null;
  for (const entity of frame.entities) {
    const style = scene.styles.get(entity.type);
    if (!style?.place || !isShown(entity)) continue;
    const [x, y] = style.place.map((column) => entity.values[column]);
    if (!Number.isFinite(x) || !Number.isFinite(y)) continue;
    const size = style.size ?? defaultSize;
    const radius = size === null ? Math.min(Math.max(0.014 * Math.min(picture.width, picture.height), 4), 11) : (size * transform.scale) / 2;
    placed.push({ entity, style, x: transform.x(x), y: transform.y(y), radius: Math.max(radius, 2) });
  }
  return placed.sort((a, b) => a.style.layer - b.style.layer);
}

const isShown = (entity) => !state.off.has(entity.type) && (state.showHidden || !entity.hidden);

function drawGround({ plane, scale, x, y }) {
  const [left, right] = [x(plane.left), x(plane.right)];
  const [top, bottom] = [Math.min(y(plane.top), y(plane.bottom)), Math.max(y(plane.top), y(plane.bottom))];
  pen.fillStyle = colors.ground;
  pen.fillRect(left, top, right - left, bottom - top);
  pen.strokeStyle = colors.line;
  pen.lineWidth = 1;
  pen.beginPath();
  const spacing = plane.cell ?? roundSpacing(plane.right - plane.left);
  const first = (edge) => (plane.cell ? edge : Math.ceil(edge / spacing) * spacing);
  if (spacing * scale >= 5) {
    for (let at = first(plane.left); at <= plane.right + 1e-9; at += spacing) line(x(at), top, x(at), bottom);
    for (let at = first(plane.top); at <= plane.bottom + 1e-9; at += spacing) line(left, y(at), right, y(at));
  }
  pen.stroke();
  pen.strokeStyle = colors.edge;
  pen.strokeRect(left, top, right - left, bottom - top);
}

function line(x1, y1, x2, y2) {
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
}

// 1, 2 or 5 times a power of ten, about an eighth of the extent.
function roundSpacing(extent) {
  const power = 10 ** Math.floor(Math.log10(extent / 8));
  return [1, 2, 5, 10].map((factor) => factor * power).find((spacing) => spacing >= extent / 8);
}

function drawEntity({ entity, style, x, y, radius }, isSelected, yUp) {
  const heading = style.angle === null ? null : headingOf(entity.values[style.angle], yUp);
  const color = colorOf(entity, style);
  pen.save();
  if (entity.hidden) {
    pen.globalAlpha = 0.45;
    pen.setLineDash([3, 2]);
  }
  pen.fillStyle = color;
  pen.strokeStyle = entity.hidden ? colors.ink : isNearGround(color) ? colors.faint : colors.ground;
  pen.lineWidth = 1;
  tracePath(style.shape, x, y, radius, heading);
  if (style.shape === 'ring') {
    pen.strokeStyle = color;
    pen.lineWidth = Math.min(Math.max(2, radius / 3), 6);
  } else {
    pen.fill();
  }
  pen.stroke();
  if (heading && style.shape !== 'triangle') drawHeading(x, y, radius, heading);
  pen.restore();
  if (isSelected) drawSelection(x, y, radius);
  drawLabel(labelOf(entity, style), style.shape === 'ring' ? colors.ground : color, x, y, radius);
}

function headingOf(angle, yUp) {
  return [Math.cos(angle), yUp ? -Math.sin(angle) : Math.sin(angle)];
}

function drawHeading(x, y, radius, [dx, dy]) {
  pen.setLineDash([]);
  pen.strokeStyle = colors.ink;
  pen.lineWidth = Math.max(1.5, radius / 5);
  pen.beginPath();
  line(x, y, x + 1.5 * radius * dx, y + 1.5 * radius * dy);
  pen.stroke();
}

function tracePath(shape, x, y, radius, heading, to = pen) {
  to.beginPath();
  if (shape === 'circle' || shape === 'ring') {
    to.arc(x, y, shape === 'ring' ? 0.8 * radius : radius, 0, 2 * Math.PI);
    return;
  }
  const [dx, dy] = (shape === 'triangle' && heading) || [0, -1];
  outlines[shape].forEach(([along, across], i) => {
    const px = x + radius * (along * dx - across * dy);
    const py = y + radius * (along * dy + across * dx);
    if (i) to.lineTo(px, py);
    else to.moveTo(px, py);
  });
  to.closePath();
}

// Corners as [along, across] of the heading, which is upwards unless the entity has one; radius 1.
const outlines = {
  square: [[0.88, -0.88], [0.88, 0.88], [-0.88, 0.88], [-0.88, -0.88]],
  triangle: [[1.1, 0], [-0.75, 0.85], [-0.75, -0.85]],
  diamond: [[1.1, 0], [0, 0.85], [-1.1, 0], [0, -0.85]],
  cross: [
    [1, 0.35], [0.35, 0.35], [0.35, 1], [-0.35, 1], [-0.35, 0.35], [-1, 0.35],
    [-1, -0.35], [-0.35, -0.35], [-0.35, -1], [0.35, -1], [0.35, -0.35], [1, -0.35],
  ],
};

function drawSelection(x, y, radius) {
  pen.strokeStyle = colors.ink;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(x, y, radius + 4, 0, 2 * Math.PI);
  pen.stroke();
}

function drawLabel(text, background, x, y, radius) {
  if (!text) return;
  const size = Math.min(Math.max(radius, 10), 14);
  pen.font = `${size}px system-ui, sans-serif`;
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  const fits = pen.measureText(text).width <= 1.8 * radius;
  pen.fillStyle = fits ? readableOn(background) : colors.ink;
  pen.fillText(text, x, fits ? y + 0.5 : y - radius - 0.6 * size);
}

// From 0 (black) to 255 (white).
function brightness(color) {
  const [red, green, blue] = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue;
}

const readableOn = (color) => (brightness(color) > 140 ? '#111111' : '#ffffff');
const isNearGround = (color) => Math.abs(brightness(color) - brightness(colors.ground)) < 60;

function drawTrails(type, style, transform) {
  const { steps } = currentEpisode();
  const paths = new Map();
  for (let t = Math.max(0, state.step - style.trail); t <= state.step; t++) {
    for (const entity of frameOf(steps[t].views[state.player]).entities) {
      if (entity.type !== type || !isShown(entity)) continue;
      if (!paths.has(entity.key)) paths.set(entity.key, []);
      const [x, y] = style.place.map((column) => entity.values[column]);
      paths.get(entity.key).push([transform.x(x), transform.y(y)]);
    }
  }
  pen.strokeStyle = style.color;
  pen.lineWidth = 2;
  for (const points of paths.values()) {
    for (let i = 1; i < points.length; i++) {
      pen.globalAlpha = (0.6 * i) / points.length;
      pen.beginPath();
      line(...points[i - 1], ...points[i]);
      pen.stroke();
    }
  }
  pen.globalAlpha = 1;
}

// ---- Attention and choices. Whatever has no place is shown by bars in the cards; from there, targets get rings.

const placeOf = (entityNumber) => picture.drawn.find(({ entity }) => entity.number === entityNumber);

function drawAttention(view, selected) {
  const weights = attentionWeights(view, selected.number, state.layer, state.head);
  if (!weights) return;
  const from = placeOf(selected.number);
  const seen = picture.drawn.filter(({ entity }) => weights[entity.number] > 0.002);
  seen.sort((a, b) => weights[b.entity.number] - weights[a.entity.number]);
  const largest = weights.reduce((most, weight) => Math.max(most, weight), 0);
  pen.strokeStyle = colors.attention;
  for (const to of seen.slice(0, MOST_LINES)) {
    const weight = weights[to.entity.number];
    pen.globalAlpha = 0.15 + (0.75 * weight) / largest;
    pen.lineWidth = 0.75 + 5 * weight + (2 * weight) / largest;
    pen.beginPath();
    if (from && from !== to) line(from.x, from.y, to.x, to.y);
    else pen.arc(to.x, to.y, to.radius + 6 + pen.lineWidth / 2, 0, 2 * Math.PI);
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

function drawArrows(view, selected) {
  const from = placeOf(selected.number);
  for (const { action, row } of frameOf(view).decisions.get(selected.number) ?? []) {
    if (!selects(action)) continue;
    for (const choice of choicesOf(view, action, row)) {
      const to = choice.target === null ? null : placeOf(choice.target);
      if (to) drawChoice(from, to, choice);
    }
  }
}

function drawChoice(from, to, { probability, allowed, chosen, place }) {
  if (!allowed || (!chosen && !(probability > 0.005))) return;
  pen.strokeStyle = pen.fillStyle = colors.choice;
  pen.globalAlpha = chosen ? 1 : 0.55;
  pen.lineWidth = 1 + 7 * (probability ?? 0.15);
  pen.setLineDash(chosen ? [] : [5, 3]);
  if (from && from !== to) {
    drawArrow(from, to, pen.lineWidth);
  } else {
    pen.beginPath();
    pen.arc(to.x, to.y, to.radius + 3 + pen.lineWidth / 2, 0, 2 * Math.PI);
    pen.stroke();
  }
  pen.setLineDash([]);
  pen.globalAlpha = 1;
  if (place) drawPlace(place, to);
}

// The place of an entity in an ordered set, at its upper right.
function drawPlace(place, { x, y, radius }) {
  pen.font = 'bold 12px system-ui, sans-serif';
  pen.textAlign = 'left';
  pen.textBaseline = 'bottom';
  pen.lineWidth = 3;
  pen.strokeStyle = colors.ground;
  pen.strokeText(place, x + 0.7 * radius, y - 0.7 * radius);
  pen.fillText(place, x + 0.7 * radius, y - 0.7 * radius);
}

// A bent arrow, so that it does not lie on the line of attention to the same entity.
function drawArrow(from, to, width) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [dx / length, dy / length];
  const bend = Math.min(0.15 * length, 30);
  const [mx, my] = [(from.x + to.x) / 2 - bend * uy, (from.y + to.y) / 2 + bend * ux];
  const [ex, ey] = [to.x - (to.radius + 2) * ux, to.y - (to.radius + 2) * uy];
  pen.beginPath();
  pen.moveTo(from.x + (from.radius + 4) * ux, from.y + (from.radius + 4) * uy);
  pen.quadraticCurveTo(mx, my, ex, ey);
  pen.stroke();
  const angle = Math.atan2(ey - my, ex - mx);
  const head = 8 + 1.2 * width;
  pen.beginPath();
  pen.moveTo(ex, ey);
  for (const side of [-0.45, 0.45]) pen.lineTo(ex - head * Math.cos(angle + side), ey - head * Math.sin(angle + side));
  pen.closePath();
  pen.fill();
}

// ---- What lies under the pointer

// The entities at a place in pixels, the nearest first, and of equally near ones the topmost.
function entitiesAt(x, y) {
  const distance = (item) => Math.hypot(item.x - x, item.y - y);
  const near = picture.drawn.filter((item) => distance(item) <= Math.max(item.radius, 9));
  return near.reverse().sort((a, b) => distance(a) - distance(b)).map(({ entity }) => entity);
}

function entitiesUnder(event) {
  const box = world.getBoundingClientRect();
  return entitiesAt(event.clientX - box.left, event.clientY - box.top);
}

function describeFrame() {
  const counts = new Map();
  for (const { type } of frameOf(currentView()).entities) if (type !== GLOBAL) counts.set(type, (counts.get(type) ?? 0) + 1);
  const things = [...counts].map(([type, count]) => `${count} ${short(type)}`).join(', ') || 'nothing';
  return `World at step ${state.step}: ${things}`;
}
