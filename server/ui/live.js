// The page at `/strata`: what GET /queue, GET /cache and GET /metrics tell, as it changes.
// Ids, client names and pieces of prompts come from clients: they are only ever set as text.
import { keyField, sayError, send } from "./api.js";
import { draw } from "./chart.js";
import { seconds } from "./events.js";
import { bucketsOf, quantile, since } from "./histogram.js";

const $ = (id) => document.getElementById(id);
const QUEUE_MS = 1000;
const SLOW_MS = 5000; // between two looks at the cache and the metrics
const SPAN_MS = 600_000; // of the charts; shorter at first
const SHORT_MS = 60_000;
const WINDOW_MS = 60_000; // of the figures about gaps

const waiting = []; // points of the charts: {at, value}
const gaps = [];
let looks = []; // the histogram of gaps as it was: {at, buckets}
let hasMetrics = true;
let slowAt = 0;
let timer = 0;
let turn = 0; // counts calls of `look`: an older one that is still waiting gives up

const field = keyField(() => {
  hasMetrics = true;
  slowAt = 0;
  look();
});

async function look() {
  clearTimeout(timer);
  const mine = ++turn;
  if (document.hidden) return;
  let wait = QUEUE_MS;
  try {
    const queue = await (await send("queue")).json();
    const now = Date.now();
    if (now - slowAt >= SLOW_MS) {
      slowAt = now;
      if (hasMetrics) await lookAtGaps(now);
      showCache(await (await send("cache")).json());
    }
    if (mine !== turn) return;
    showQueue(queue, now);
    $("state").textContent = "live";
  } catch (error) {
    if (mine !== turn) return;
    $("state").textContent = sayError(error);
    if (error.status === 401) {
      field.ask();
      return; // until there is another key
    }
    wait = 2000;
  }
  timer = setTimeout(look, wait);
}

/** `peek` leaves the averages since the last scrape to who scrapes. */
async function lookAtGaps(now) {
  let text;
  try {
    text = await (await send("metrics?peek=1")).text();
  } catch (error) {
    if (error.status !== 501) throw error;
    hasMetrics = false; // the server was started without them
    return;
  }
  const buckets = bucketsOf(text, "strata:itl_seconds");
  const last = looks.at(-1);
  const p99 = last ? quantile(since(buckets, last.buckets), 0.99) : null;
  note(gaps, now, p99 === null ? null : p99 * 1000);
  looks.push({ at: now, buckets });
  looks = looks.filter((one) => one.at >= now - WINDOW_MS - SLOW_MS);
}

function note(points, at, value) {
  const last = points.at(-1);
  if (last && at - last.at > 3 * SLOW_MS) points.push({ at: last.at + 1, value: null });
  points.push({ at, value });
  while (points[0].at < at - SPAN_MS) points.shift();
}

// ---- queue --------------------------------------------------------------------------------------

function showQueue(queue, now) {
  const requests = queue.requests;
  const of = (stage) => requests.filter((request) => request.stage === stage);
  const speed = (stage) => of(stage).reduce((sum, request) => sum + request.tokens_per_s, 0);
  const inLine = of("queued").length + of("restoring").length;
  note(waiting, now, inLine);
  if (!hasMetrics) note(gaps, now, queue.rows ? queue.row_step_ms : null);
  const window = looks.length > 1 ? since(looks.at(-1).buckets, looks[0].buckets) : new Map();
  const gap = (q) => sayOr((quantile(window, q) ?? NaN) * 1000, seconds);
  setFigures([
    ["writing", of("writing").length],
    ["being read", of("reading").length],
    ["waiting", inLine],
    ["parked", of("parked").length],
    ["tokens/s written", speed("writing").toFixed(1)],
    ["tokens/s read", speed("reading").toFixed(0)],
    ...(hasMetrics
      ? [["gap p50, 1 min", gap(0.5)], ["gap p99, 1 min", gap(0.99)]]
      : [["step of these rows", queue.rows ? sayOr(queue.row_step_ms, seconds) : "-"]]),
    ["target for the gap", seconds(queue.itl_slo_ms) + (queue.itl_feasible ? "" : " (out of reach)")],
  ]);
  $("gap-title").textContent = hasMetrics
    ? "Gap between two tokens, p99 of 5 seconds; dashed: the target"
    : "A step of the rows that write, as the cost model says; start with --metrics for measured gaps";
  const span = Math.min(Math.max(now - waiting[0].at, SHORT_MS), SPAN_MS);
  draw($("gap-chart"), { points: gaps, now, span, target: queue.itl_slo_ms, say: seconds });
  draw($("queue-chart"), { points: waiting, now, span, say: (n) => n.toFixed(n % 1 ? 1 : 0) });
  setRows($("queue"), requests, (r) => [
    r.id,
    wide(r.key ? r.client + ", " + r.key : r.client),
    r.stage,
    r.position < 0 ? "" : r.position,
    Math.min(r.computed_tokens, r.prompt_tokens) + " of " + r.prompt_tokens,
    r.cached_tokens,
    r.generated_tokens,
    seconds(r.waited_ms),
    firstToken(r),
    r.tokens_per_s ? r.tokens_per_s.toFixed(1) : "",
  ]);
  $("queue-note").textContent = requests.length ? "" : "nobody is here";
}

/** When the first token is expected, counted from now. */
function firstToken(request) {
  const known = (ms) => ms !== null && ms >= 0;
  if (!known(request.predicted_ttft_ms)) return request.generated_tokens ? "came" : "";
  const left = (ms) => seconds(Math.max(0, ms - request.waited_ms));
  const range = known(request.predicted_ttft_low_ms) && known(request.predicted_ttft_high_ms);
  const [low, high] = [request.predicted_ttft_low_ms, request.predicted_ttft_high_ms];
  return "in " + left(request.predicted_ttft_ms) + (range ? " (" + left(low) + " to " + left(high) + ")" : "");
}

// ---- cache --------------------------------------------------------------------------------------

const TIERS = { resident: "KV cache", ram: "RAM", disk: "disk" };

function showCache(cache) {
  const tiers = Object.keys(TIERS).filter((tier) => cache[tier]);
  setRows($("tiers"), tiers, (name) => {
    const tier = cache[name];
    return [
      TIERS[name] + (tier.open === false ? " (not usable now)" : ""),
      tier.cells ? "" : bytes(tier.bytes),
      tier.cells ? count(tier.cells) + " cells" : bytes(tier.limit_bytes),
      tier.limit_bytes ? meter(tier.bytes / tier.limit_bytes) : "",
      sayOr(tier.tokens, count),
      sayOr(tier.blocks ?? tier.sequences, count),
      sayOr(tier.hit_tokens, count),
      sayOr(tier.evicted_blocks, count),
      tier.restore_bytes_per_s ? bytes(tier.restore_bytes_per_s) + "/s" : "",
    ];
  });
  const hints = cache.hints ?? [];
  $("miss-note").textContent = hints.length ? "Of the last 256 that were, the causes:" : "None was lately.";
  setRows($("hints"), hints, (hint) => [hint.cause, hint.requests, wide(hint.explanation)]);
  setMisses(cache.misses ?? []);
  setRows($("talks"), cache.conversations ?? [], (talk) => [count(talk.tokens), bytes(talk.bytes), wide(talk.begins)]);
}

/** One entry per miss, newest first; those that are there stay as they are, opened or not. */
function setMisses(misses) {
  const before = new Map([...$("misses").children].map((element) => [element.dataset.id, element]));
  $("misses").replaceChildren(...misses.map((miss) => before.get(miss.id) ?? missOf(miss)));
}

function missOf(miss) {
  const details = document.createElement("details");
  details.dataset.id = miss.id;
  const at = miss.differs_at === null ? "" : ", differs at token " + miss.differs_at;
  const head = `${miss.id}: ${miss.cause}, ${miss.cached_tokens} of ${miss.prompt_tokens} tokens found${at}`;
  details.append(make("summary", head), make("p", miss.explanation));
  for (const [title, text] of [["stored", miss.stored_text], ["this prompt", miss.prompt_text]]) {
    if (text) details.append(make("div", title), make("pre", text));
  }
  return details;
}

// ---- elements -----------------------------------------------------------------------------------

function make(name, text = "") {
  const element = document.createElement(name);
  element.textContent = text;
  return element;
}

function wide(text) {
  const cell = make("td", text);
  cell.className = "wide";
  return cell;
}

function meter(share) {
  const element = document.createElement("meter");
  element.value = Math.min(share, 1);
  element.textContent = Math.round(100 * share) + " %";
  return element;
}

/** Fill a table's body; cells that stay the same are left alone, so that a selection survives. */
function setRows(body, items, cellsOf) {
  while (body.rows.length > items.length) body.deleteRow(-1);
  items.forEach((item, number) => {
    const row = body.rows[number] ?? body.insertRow();
    cellsOf(item).forEach((content, column) => {
      const old = row.cells[column];
      let cell = content;
      if (!(cell instanceof HTMLTableCellElement)) {
        cell = make("td");
        cell.append(content ?? "");
      }
      if (!old) row.append(cell);
      else if (!old.isEqualNode(cell)) old.replaceWith(cell);
    });
  });
}

function setFigures(figures) {
  const list = $("figures");
  while (list.children.length > figures.length) list.lastChild.remove();
  figures.forEach(([name, value], number) => {
    const box = list.children[number] ?? list.appendChild(make("div"));
    if (!box.children.length) box.append(make("dt"), make("dd"));
    box.children[0].textContent = name;
    box.children[1].textContent = value;
  });
}

function sayOr(value, say) {
  return Number.isFinite(value) ? say(value) : "-";
}

function count(number) {
  return Math.round(number).toLocaleString("en");
}

function bytes(number) {
  if (!Number.isFinite(number)) return "-";
  if (number < 1 << 20) return Math.ceil(number / 1024) + " KiB";
  return number < 2 ** 30 ? Math.round(number / 2 ** 20) + " MiB" : (number / 2 ** 30).toFixed(1) + " GiB";
}

document.addEventListener("visibilitychange", look);
look();
