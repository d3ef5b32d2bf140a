// ---- Charts: value, reward and entropy over the steps of the episode, and the densities of numbers.

const CHARTS = [
  { key: 'reward', title: 'Reward', kind: 'bars' },
  { key: 'value', title: 'Value', kind: 'line' },
  { key: 'entropy', title: 'Entropy', kind: 'line' },
];
const CHART_HEIGHT = 56;

let charts = []; // {key, title, kind, canvas, now, range, box, still, stillOf}

function makeCharts() {
  charts = CHARTS.map((kind) => {
    const canvas = element('canvas', { className: 'chart', role: 'img' });
    const now = element('span', { className: 'now' });
    const range = element('span', { className: 'range' });
    const box = element('div', { className: 'chart-box' }, element('p', {}, kind.title, ' ', now, range), canvas);
    const chart = { ...kind, canvas, now, range, box, still: document.createElement('canvas'), stillOf: null };
    canvas.addEventListener('click', (event) => go(state.episode, chartStep(event)));
    canvas.addEventListener('pointermove', (event) => {
      const t = chartStep(event);
      showText(`step ${t}: ${kind.title.toLowerCase()} ${number(seriesOf(currentEpisode(), state.player)[kind.key][t])}`, event);
    });
    canvas.addEventListener('pointerleave', hideTooltip);
    return chart;
  });
  document.getElementById('charts').replaceChildren(...charts.map(({ box }) => box));
}

function chartStep(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const last = currentEpisode().steps.length - 1;
  return Math.min(Math.max(Math.round(((event.clientX - box.left - 4) / (box.width - 8)) * last), 0), last);
}

function drawCharts() {
  const known = seriesOf(currentEpisode(), state.player);
  for (const chart of charts) {
    const values = known[chart.key];
    chart.box.hidden = values.every((value) => value === null);
    if (chart.box.hidden) continue;
    drawChart(chart, values);
    const text = number(values[state.step]);
    setText(chart.now, text);
    chart.canvas.setAttribute('aria-label', `${chart.title} over ${values.length} steps; at step ${state.step}: ${text}`);
  }
}

// The curve is kept in a canvas of its own: only the mark moves while the episode plays.
function drawChart(chart, values) {
  const width = chart.canvas.clientWidth || 300;
  const to = scaledContext(chart.canvas, width, CHART_HEIGHT);
  const version = [state.version, state.episode, state.player, values.length, width, colors.theme].join();
  if (chart.stillOf !== version) {
    const [low, high] = rangeOf(values);
    drawCurve(scaledContext(chart.still, width, CHART_HEIGHT), chart.kind, values, width, low, high);
    setText(chart.range, `${number(low, 3)} … ${number(high, 3)}`);
    chart.stillOf = version;
  }
  to.clearRect(0, 0, width, CHART_HEIGHT);
  to.drawImage(chart.still, 0, 0, width, CHART_HEIGHT);
  const x = chartX(state.step, values.length, width);
  to.strokeStyle = colors.ink;
  to.lineWidth = 1.5;
  to.beginPath();
  to.moveTo(x, 0);
  to.lineTo(x, CHART_HEIGHT);
  to.stroke();
}

function scaledContext(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [pixelWidth, pixelHeight] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixelWidth || canvas.height !== pixelHeight) [canvas.width, canvas.height] = [pixelWidth, pixelHeight];
  const to = canvas.getContext('2d');
  to.setTransform(ratio, 0, 0, ratio, 0, 0);
  return to;
}

const chartX = (t, length, width) => 4 + ((width - 8) * t) / Math.max(length - 1, 1);

function rangeOf(values) {
  const known = values.filter((value) => value !== null);
  const low = known.reduce((least, value) => Math.min(least, value), 0);
  return [low, known.reduce((most, value) => Math.max(most, value), 0)];
}

function drawCurve(to, kind, values, width, low, high) {
  const y = (value) => CHART_HEIGHT - 4 - ((CHART_HEIGHT - 8) * (value - low)) / (high - low || 1);
  to.clearRect(0, 0, width, CHART_HEIGHT);
  to.strokeStyle = colors.edge;
  to.lineWidth = 1;
  to.beginPath();
  to.moveTo(0, y(0));
  to.lineTo(width, y(0));
  to.stroke();
  to.strokeStyle = to.fillStyle = colors.curve;
  if (kind === 'bars') drawBars(to, values, width, y);
  else drawLine(to, values, width, y);
}

function drawBars(to, values, width, y) {
  const bar = Math.min(Math.max((width - 8) / values.length - 1, 1), 8);
  values.forEach((value, t) => {
    if (value) to.fillRect(chartX(t, values.length, width) - bar / 2, Math.min(y(0), y(value)), bar, Math.max(Math.abs(y(value) - y(0)), 1));
  });
}

function drawLine(to, values, width, y) {
  to.lineWidth = 1.5;
  to.beginPath();
  let isGap = true;
  values.forEach((value, t) => {
    if (value !== null) {
      const x = chartX(t, values.length, width);
      if (isGap) to.moveTo(x, y(value));
      else to.lineTo(x, y(value));
      if (isGap && (values[t + 1] ?? null) === null) to.fillRect(x - 2, y(value) - 2, 4, 4);
    }
    isGap = value === null;
  });
  to.stroke();
}

// ---- The density of a number, before it is bounded: what lies outside of the bounds is moved to them.

const DENSITY_HEIGHT = 52;

function drawDensity(canvas, { mean, std, low, high, chosen }) {
  const width = canvas.clientWidth || 240;
  const to = scaledContext(canvas, width, DENSITY_HEIGHT);
  to.clearRect(0, 0, width, DENSITY_HEIGHT);
  const spread = Math.max(std, 1e-6);
  const marks = [mean - 3.2 * spread, mean + 3.2 * spread, chosen, low, high].filter((value) => value !== null && Number.isFinite(value));
  const [left, right] = [Math.min(...marks), Math.max(...marks)];
  const x = (value) => 6 + ((width - 12) * (value - left)) / (right - left || 1);
  const y = (density) => DENSITY_HEIGHT - 6 - (DENSITY_HEIGHT - 12) * density;
  shadeOutside(to, x, low, high, width);
  to.strokeStyle = colors.edge;
  stroke(to, [[0, y(0)], [width, y(0)]]);
  const points = Array.from({ length: 121 }, (_, i) => mean + spread * (i / 15 - 4));
  const curve = points.map((value) => [x(value), y(Math.exp(-(((value - mean) / spread) ** 2) / 2))]);
  to.lineWidth = 1.5;
  to.strokeStyle = colors.choice;
  stroke(to, curve);
  to.strokeStyle = colors.faint;
  to.setLineDash([3, 3]);
  for (const bound of [low, high]) if (Number.isFinite(bound)) stroke(to, [[x(bound), 0], [x(bound), DENSITY_HEIGHT]]);
  to.setLineDash([]);
  if (chosen === null) return;
  to.strokeStyle = colors.ink;
  to.lineWidth = 2;
  stroke(to, [[x(chosen), 2], [x(chosen), y(0)]]);
}

function shadeOutside(to, x, low, high, width) {
  to.fillStyle = colors.line;
  if (Number.isFinite(low)) to.fillRect(0, 0, Math.max(x(low), 0), DENSITY_HEIGHT);
  if (Number.isFinite(high)) to.fillRect(x(high), 0, Math.max(width - x(high), 0), DENSITY_HEIGHT);
}

function stroke(to, points) {
  to.beginPath();
  for (const [x, y] of points) to.lineTo(x, y);
  to.stroke();
}
