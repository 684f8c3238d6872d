// A line over time as SVG: newest at the right, gaps where nothing was known.
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 110;
const LEFT = 52;
const TOP = 8;
const BOTTOM = 18;

/** Draws into `svg` the `points` {at, value} (milliseconds, number or null) of the last `span`
 * milliseconds; `target` is a dashed line; `say` writes values. */
export function draw(svg, { points, now, span, target, say }) {
  const width = Math.max(svg.clientWidth, 200);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const seen = points.filter((point) => point.at >= now - span);
  const values = seen.map((point) => point.value).filter((value) => value !== null);
  const top = niceAbove(Math.max(...values, target ?? 0, 1));
  const x = (at) => LEFT + (1 - (now - at) / span) * (width - LEFT - 4);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);
  const parts = [0, top / 2, top].flatMap((value) => [
    make("line", { class: "grid", x1: LEFT, x2: width - 4, y1: y(value), y2: y(value) }),
    make("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, say(value)),
  ]);
  parts.push(make("text", { class: "tick", x: LEFT, y: HEIGHT - 3 }, `${Math.round(span / 60_000)} min ago`));
  parts.push(make("text", { class: "tick", x: width - 4, y: HEIGHT - 3, "text-anchor": "end" }, "now"));
  if (target) parts.push(make("line", { class: "target", x1: LEFT, x2: width - 4, y1: y(target), y2: y(target) }));
  for (const run of runs(seen)) {
    const line = run.map((point) => `${x(point.at).toFixed(1)},${y(point.value).toFixed(1)}`);
    if (run.length > 1) parts.push(make("polyline", { class: "curve", points: line.join(" ") }));
    else parts.push(make("circle", { class: "dot", cx: x(run[0].at), cy: y(run[0].value), r: 2 }));
  }
  svg.replaceChildren(...parts);
  const last = seen.at(-1)?.value ?? null;
  const most = values.length ? say(Math.max(...values)) : "nothing yet";
  svg.setAttribute("aria-label", `now ${last === null ? "nothing" : say(last)}, at most ${most}`);
}

/** Points with a value, cut where one has none. */
function runs(points) {
  const found = [[]];
  for (const point of points) {
    if (point.value === null) found.push([]);
    else found.at(-1).push(point);
  }
  return found.filter((run) => run.length);
}

/** 1, 2 or 5 times a power of ten, at or above `value`. */
export function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((nice) => nice >= value);
}

function make(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
