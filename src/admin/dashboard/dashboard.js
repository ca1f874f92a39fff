// The dashboard. It shows the data from /events, and uses /api for queries and changes. All data from the gateway is
// inserted as text (textContent), never as markup.
"use strict";

const byId = (id) => document.getElementById(id);

/** Creates an element with a class and a text. */
function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Formatting.

function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond === 0) return "0";
  return perSecond < 9.95 ? perSecond.toFixed(1) : Math.round(perSecond).toLocaleString("en");
}

function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms >= 172_800_000) return `${Math.round(ms / 8_640_000) / 10} d`;
  if (ms >= 7_200_000) return `${Math.round(ms / 360_000) / 10} h`;
  if (ms >= 60_000) return `${Math.round(ms / 6_000) / 10} min`;
  if (ms >= 1_000) return `${Math.round(ms / 100) / 10} s`;
  return ms >= 10 ? `${Math.round(ms)} ms` : `${ms.toFixed(ms < 1 ? 2 : 1)} ms`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let at = 0;
  for (; count >= 1024 && at < units.length - 1; at += 1) count /= 1024;
  return `${count < 10 && at > 0 ? count.toFixed(1) : Math.round(count)} ${units[at]}`;
}

const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

// Samples.

/** The time spans of charts. The shortest one that shows all samples is used. */
const SPANS_MS = [1, 2, 5, 10].map((minutes) => 60_000 * minutes);
/** One sample per second; see the columns of the event `history`. */
let samples = [];

function sampleOf(row) {
  const [time, seconds, ...numbers] = row;
  const [refused, p50, p99] = numbers.splice(5);
  const all = numbers.reduce((sum, count) => sum + count, 0);
  const [passed, failed] = [all - refused, numbers[4]];
  const rates = [all, passed, refused, failed].map((count) => count / seconds);
  return { time, seconds, all: rates[0], passed: rates[1], refused: rates[2], failed: rates[3], p50, p99 };
}

function keep(sample) {
  const last = samples.at(-1);
  if (last && sample.time <= last.time) return;
  samples.push(sample);
  while (samples[0].time < sample.time - SPANS_MS.at(-1)) samples.shift();
}

// Charts, as SVG.

const SVG = "http://www.w3.org/2000/svg";

function draw(parent, name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

/** Returns the smallest of 1, 2 and 5 times a power of ten that is at least `least`. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least * 0.999);
}

/**
 * A chart of series, each with a name, a class, and a function from sample to value. Areas are stacked, lines aren't.
 * The pointer or the arrow keys pick a second, whose values the legend shows instead of the latest.
 */
class Chart {
  constructor(place, label, series, show) {
    Object.assign(this, { label, series, show, picked: null });
    this.legend = make("ul", "legend");
    this.svg = draw(place, "svg", { tabindex: 0, role: "img" });
    place.prepend(this.legend);
    this.svg.addEventListener("pointermove", (event) => {
      this.pick(event.clientX - this.svg.getBoundingClientRect().left);
    });
    this.svg.addEventListener("pointerleave", () => this.pick(null));
    this.svg.addEventListener("blur", () => this.pick(null));
    this.svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || samples.length === 0) return;
      event.preventDefault();
      const at = this.picked === null ? samples.length - 1 : this.at(this.picked) + by;
      this.picked = samples[Math.max(0, Math.min(samples.length - 1, at))].time;
      this.render();
    });
    new ResizeObserver(() => this.render()).observe(place);
  }

  /** Returns the index of the sample nearest to a time. */
  at(time) {
    let nearest = samples.length - 1;
    while (nearest > 0 && Math.abs(samples[nearest - 1].time - time) <= Math.abs(samples[nearest].time - time)) {
      nearest -= 1;
    }
    return nearest;
  }

  pick(x) {
    this.picked = x === null || !this.timeAt ? null : this.timeAt(x);
    this.render();
  }

  render() {
    const { width, height } = this.svg.getBoundingClientRect();
    if (width === 0) return;
    const [left, right, top, bottom] = [48, 6, 8, 22];
    const now = samples.at(-1)?.time ?? Date.now();
    const age = now - (samples[0]?.time ?? now);
    const span = SPANS_MS.find((span) => span >= age) ?? SPANS_MS.at(-1);
    const x = (time) => left + (1 - (now - time) / span) * (width - left - right);
    this.timeAt = (at) => now - (1 - (at - left) / (width - left - right)) * span;
    const values = samples.map((sample) => {
      let sum = 0;
      return this.series.map(({ value, isArea }) => {
        const own = value(sample);
        if (own === null || !isArea) return own;
        sum += own;
        return sum;
      });
    });
    const step = niceStep(Math.max(1, ...values.flat()) / 4);
    const ceiling = step * Math.ceil(Math.max(1, ...values.flat()) / step);
    const y = (value) => height - bottom - (value / ceiling) * (height - top - bottom);

    this.svg.replaceChildren();
    for (let value = 0; value <= ceiling + step / 2; value += step) {
      draw(this.svg, "line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) });
      draw(this.svg, "text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, this.show(value, true));
    }
    const ticks = width < 420 ? 2 : span < 300_000 ? 4 : 5;
    for (let tick = 0; tick <= ticks; tick += 1) {
      const ago = (tick * span) / ticks;
      const text = tick === 0 ? "now" : `−${ago < 60_000 ? `${ago / 1_000} s` : `${ago / 60_000} min`}`;
      const anchor = tick === 0 ? "end" : tick === ticks ? "start" : "middle";
      draw(this.svg, "text", { x: x(now - ago), y: height - 6, "text-anchor": anchor }, text);
    }
    this.series.forEach(({ className, isArea }, at) => {
      const point = (of, height) => `${x(samples[of].time).toFixed(1)},${y(height).toFixed(1)}`;
      for (const piece of this.pieces(values, at)) {
        const line = piece.map((of) => point(of, values[of][at])).join("L");
        if (isArea) {
          const floor = piece.map((of) => point(of, at === 0 ? 0 : values[of][at - 1]));
          draw(this.svg, "path", { class: `area ${className}`, d: `M${line}L${floor.reverse().join("L")}Z` });
        }
        draw(this.svg, "path", { class: `line ${className}`, d: `M${line}` });
      }
    });
    const of = this.picked === null ? samples.length - 1 : this.at(this.picked);
    if (this.picked !== null && of >= 0) {
      const at = x(samples[of].time);
      draw(this.svg, "line", { class: "cursor", x1: at, x2: at, y1: top, y2: height - bottom });
    }
    this.describe(samples[of]);
  }

  /** Returns runs of indexes of consecutive samples with a value. Samples that the page missed leave a gap. */
  pieces(values, series) {
    const pieces = [];
    let piece = [];
    for (let at = 0; at <= values.length; at += 1) {
      const isThere = at < values.length && values[at][series] !== null;
      const follows = piece.length > 0 && isThere && samples[at].time - samples[piece.at(-1)].time < 3_000;
      if (piece.length > 0 && !follows) {
        pieces.push(piece);
        piece = [];
      }
      if (isThere) piece.push(at);
    }
    return pieces;
  }

  describe(sample) {
    const texts = this.series.map(({ name, value }) => `${name} ${sample ? this.show(value(sample)) : "–"}`);
    const when = this.picked === null || !sample ? "now" : `at ${clock(sample.time)}`;
    this.svg.setAttribute("aria-label", `${this.label} ${when}: ${texts.join(", ")}`);
    this.legend.replaceChildren(
      ...this.series.map(({ className }, at) => {
        const item = make("li");
        item.append(make("i", className), texts[at]);
        return item;
      }),
    );
    if (this.picked !== null && sample) {
      const item = make("li");
      item.append(make("time", "", clock(sample.time)));
      this.legend.append(item);
    }
  }
}

// Tables.

/** The text that rows must contain to be shown, in lower case. */
let sought = "";

/** Creates an element of a table. Its role is explicit, since narrow screens show tables as blocks. */
function makePart(name, role, className) {
  const part = make(name, className);
  part.setAttribute("role", role);
  return part;
}

/**
 * A table. A column has a title, a function from item to text, and optionally the value to sort by, the full text, classes, and
 * an action. Rows keep their elements, and their order while the table has the focus or the pointer, so that nothing moves
 * while it is being used. A click on a title sorts by that column, another one reverses the order, and a third one ends it.
 */
class Table {
  constructor(place, title, columns, { idOf, empty }) {
    Object.assign(this, { columns, idOf, rows: new Map(), items: [], sorted: null });
    const scroll = make("div", "scroll");
    const table = makePart("table", "table");
    table.setAttribute("aria-label", title);
    const head = makePart("tr", "row");
    this.heads = columns.map(({ title, className }, at) => {
      const cell = makePart("th", "columnheader", className);
      cell.scope = "col";
      const button = make("button", "", title);
      Object.assign(button, { type: "button", onclick: () => this.sort(at) });
      cell.append(button);
      return cell;
    });
    head.append(...this.heads);
    const top = table.createTHead();
    top.setAttribute("role", "rowgroup");
    top.append(head);
    this.body = table.createTBody();
    this.body.setAttribute("role", "rowgroup");
    this.scroll = scroll;
    scroll.hidden = true;
    this.empty = make("p", "empty");
    this.none = empty;
    scroll.append(table);
    place.append(scroll, this.empty);
  }

  sort(at) {
    const isNumber = this.columns[at].value !== undefined;
    if (this.sorted?.at !== at) this.sorted = { at, isDown: isNumber };
    else if (this.sorted.isDown === isNumber) this.sorted.isDown = !isNumber;
    else this.sorted = null;
    this.heads.forEach((head, of) => {
      if (this.sorted?.at === of) head.setAttribute("aria-sort", this.sorted.isDown ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.show(this.items, true);
  }

  /** Returns the items that contain the sought text, in the order that was chosen. */
  arranged() {
    const texts = (item) => this.columns.map(({ text }) => String(text(item) ?? ""));
    const found = this.items.filter((item) => sought === "" || texts(item).join(" ").toLowerCase().includes(sought));
    if (!this.sorted) return found;
    const { at, isDown } = this.sorted;
    const { value, text } = this.columns[at];
    const compare = value
      ? (one, other) => (value(one) ?? -1) - (value(other) ?? -1)
      : (one, other) => String(text(one)).localeCompare(String(text(other)), "en", { numeric: true });
    return found.sort((one, other) => (isDown ? compare(other, one) : compare(one, other)));
  }

  /** Says that the items can't be told. Those that are shown stay. */
  showUnknown(cause) {
    if (this.items.length === 0) this.empty.textContent = cause;
  }

  show(all, isAsked = false) {
    this.items = all;
    this.empty.textContent = this.none;
    const items = this.arranged();
    const ids = items.map(this.idOf);
    this.scroll.hidden = all.length === 0;
    this.empty.hidden = all.length > 0;
    const isHeld = !isAsked && (this.body.contains(document.activeElement) || this.body.matches(":hover"));
    for (const [id, row] of this.rows) {
      if (!ids.includes(id) && !row.contains(document.activeElement)) {
        row.remove();
        this.rows.delete(id);
      }
    }
    items.forEach((item, at) => {
      let row = this.rows.get(ids[at]);
      if (!row) {
        row = this.makeRow();
        this.rows.set(ids[at], row);
        this.body.append(row);
      }
      row.item = item;
      this.columns.forEach((column, at) => this.fill(row.cells[at], column, item));
      if (!isHeld && this.body.rows[at] !== row) this.body.insertBefore(row, this.body.rows[at]);
    });
  }

  fill(cell, { text, full, className, mood, act }, item) {
    const does = act?.(item);
    if (does && !cell.firstElementChild) cell.replaceChildren(make("button"));
    const place = does ? cell.firstElementChild : cell;
    if (does) Object.assign(place, { type: "button", onclick: does });
    const shown = String(text(item) ?? "–");
    if (place.textContent !== shown) place.textContent = shown;
    const classes = [className, mood?.(item)].filter(Boolean).join(" ");
    if (cell.className !== classes) cell.className = classes;
    if (full) cell.title = full(item);
  }

  makeRow() {
    const row = makePart("tr", "row");
    this.columns.forEach(({ title }, at) => {
      const cell = at === 0 ? makePart("th", "rowheader") : makePart("td", "cell");
      if (at === 0) cell.scope = "row";
      else cell.dataset.title = title;
      row.append(cell);
    });
    return row;
  }
}

/** Returns a column of numbers, from a function from item to number and one from number to text. */
const number = (title, value, shown) => ({
  title,
  value,
  text: (item) => shown(value(item), item),
  className: "number",
});

const whole = (count) => count.toLocaleString("en");

/** The names of limits in shadow mode. */
let shadowing = new Set();

/** A column of keys to look up. */
const keyColumn = {
  title: "Key",
  className: "key",
  text: shortened,
  full: (item) => item.written ?? item.key,
  act: (item) => item.written !== null && (() => lookUp(item.limit, item.written)),
};

function keysTable(place, title, empty, more = []) {
  const columns = [
    keyColumn,
    { title: "Limit", text: (hit) => (shadowing.has(hit.limit) ? `${hit.limit} (shadow)` : hit.limit) },
    number("per second", (hit) => hit.per_second, rate),
    ...more,
    number("counted", (hit) => hit.at_least, (_, hit) => counted(hit)),
  ];
  return new Table(byId(place), title, columns, { idOf: (hit) => `${hit.limit} ${hit.key}`, empty });
}

/** Returns the name of a key, or else its parts side by side with their hashes shortened. */
function shortened({ name, written, key }) {
  if (name) return name;
  if (!written?.startsWith("[")) return written ?? key;
  const parts = JSON.parse(written);
  return parts.map((part) => part.replace(/^(sha256:[0-9a-f]{8})[0-9a-f]{24}$/, "$1…")).join(" · ");
}

function counted({ at_least: least, at_most: most }) {
  const text = least.toLocaleString("en");
  return most > least ? `${text} – ${most.toLocaleString("en")}` : text;
}

const tables = {
  busiest: keysTable("busiest", "Busiest keys", "No requests yet."),
  refused: keysTable("refused", "Most rejected keys", "No request was rejected.", [
    number("retry after", delayOf, (ms) => (ms === 0 ? "now" : duration(ms))),
  ]),
  limits: new Table(
    byId("limits"),
    "Limits",
    [
      { title: "Limit", text: (limit) => limit.limit },
      {
        title: "Rate",
        text: (limit) => (limit.rate === limit.file_rate ? limit.rate : `${limit.rate} (set; file: ${limit.file_rate})`),
        mood: (limit) => (limit.rate === limit.file_rate ? "" : "warn"),
      },
      { title: "Algorithm", text: (limit) => limit.algorithm + (limit.shadows ? ", shadow" : "") },
      number("admitted", (limit) => limit.per_second.admitted, rate),
      {
        ...number("rejected", (limit) => limit.per_second.refused, rate),
        mood: (limit) => (limit.per_second.refused > 0 && !limit.shadows ? "warn" : ""),
      },
      number("exempt", (limit) => limit.per_second.exempt, rate),
      number("skipped", (limit) => limit.per_second.skipped, rate),
      number("rejected, total", (limit) => limit.decisions.refused, whole),
    ],
    { idOf: (limit) => limit.limit, empty: "No limits configured." },
  ),
  routes: new Table(
    byId("routes"),
    "Routes",
    [
      { title: "Route", text: (route) => route.route || "(none matched)" },
      { title: "Limits", text: (route) => namesOf(route, "limits") },
      { title: "Upstream", text: (route) => namesOf(route, "upstream") },
      number("requests", (route) => route.per_second, rate),
      {
        ...number("rejected", (route) => route.refused_per_second, rate),
        mood: (route) => (route.refused_per_second > 0 ? "warn" : ""),
      },
      number("4xx", (route) => share(route, "4xx"), percent),
      { ...number("5xx", (route) => share(route, "5xx"), percent), mood: (route) => (route.recent["5xx"] > 0 ? "bad" : "") },
      number("median", (route) => route.p50_ms, duration),
      number("99th", (route) => route.p99_ms, duration),
    ],
    { idOf: (route) => route.route, empty: "" },
  ),
  upstreams: new Table(
    byId("upstreams"),
    "Upstream servers",
    [
      { title: "Upstream", text: (server) => server.upstream },
      { title: "Server", text: (server) => server.server },
      { title: "State", text: stateOf, mood: (server) => (stateOf(server) === "up" ? "good" : "bad") },
      number("per second", (server) => server.answers_per_second, rate),
      {
        ...number("failed", (server) => server.failures_per_second, rate),
        mood: (server) => (server.failures_per_second > 0 ? "bad" : ""),
      },
      number("in flight", (server) => server.in_flight, whole),
      number("99th", (server) => server.p99_ms, duration),
    ],
    { idOf: (server) => `${server.upstream} ${server.server}`, empty: "No upstreams configured." },
  ),
  store: new Table(
    byId("store"),
    "Store nodes",
    [
      { title: "Node", text: (node) => node.node },
      { title: "Breaker", text: (node) => (node.breaker_open ? "open" : "closed"), mood: (node) => (node.breaker_open ? "bad" : "good") },
      number("opened", (node) => node.breaker_openings, whole),
      number("calls/s", (node) => node.calls_per_second, rate),
      number("batch", (node) => node.charges_per_call, (charges) => charges?.toFixed(1)),
      number("median", (node) => node.p50_ms, duration),
      number("99th", (node) => node.p99_ms, duration),
    ],
    { idOf: (node) => node.node, empty: "Limits are counted in this process." },
  ),
  overrides: new Table(
    byId("overrides"),
    "Overrides",
    [
      { title: "Key", className: "key", text: (own) => own.key ?? "(the limit)", full: (own) => own.key },
      { title: "Limit", text: (own) => own.limit },
      { title: "Rate", text: (own) => own.rate },
      { title: "From", text: (own) => own.from, mood: (own) => (own.from === "set" ? "warn" : "") },
      number("ends in", (own) => own.ends_in_ms, duration),
    ],
    { idOf: (own) => `${own.from} ${own.limit} ${own.key}`, empty: "No key has a rate of its own, and no rate is set." },
  ),
  bans: new Table(
    byId("bans"),
    "Bans",
    [
      keyColumn,
      { title: "Limit", text: (ban) => ban.limit },
      number("ends in", (ban) => ban.ends_in_ms, duration),
    ],
    { idOf: (ban) => `${ban.limit} ${ban.key}`, empty: "No ban of this gateway lasts." },
  ),
};

function namesOf(route, what) {
  return [...new Set(route.matches.flatMap((match) => match[what] ?? []))].join(", ") || "–";
}

function share(route, status) {
  const all = Object.values(route.recent).reduce((sum, count) => sum + count, 0);
  return all === 0 ? null : (100 * route.recent[status]) / all;
}

function percent(share) {
  if (share === null) return "–";
  return share === 0 ? "0" : `${share < 9.95 ? share.toFixed(1) : Math.round(share)} %`;
}

function stateOf(server) {
  if (!server.up) return "down";
  if (server.ejected_for_ms !== null) return `ejected, ${duration(server.ejected_for_ms)}`;
  return server.failures_per_second > 0 && server.answers_per_second === 0 ? "failing" : "up";
}

const charts = [
  new Chart(
    byId("throughput"),
    "Requests per second",
    [
      { name: "passed", className: "passed", isArea: true, value: (sample) => sample.passed },
      { name: "rejected", className: "refused", isArea: true, value: (sample) => sample.refused },
      { name: "5xx", className: "failed", value: (sample) => sample.failed || null },
    ],
    (value, isTick) => (isTick ? value.toLocaleString("en", { notation: "compact" }) : rate(value)),
  ),
  new Chart(
    byId("latency"),
    "Latency",
    [
      { name: "median", className: "passed", value: (sample) => sample.p50 },
      { name: "99th percentile", className: "slow", value: (sample) => sample.p99 },
    ],
    (value, isTick) => (isTick && value === 0 ? "0" : duration(value)),
  ),
];

/** Shows a text with a secondary remark. */
function showText(id, text, remark, mood = "") {
  const place = byId(id);
  place.className = mood;
  place.replaceChildren(text);
  if (remark) place.append(make("small", "", remark));
}

function showState(state) {
  const last = samples.at(-1);
  showText("now-requests", rate(last?.all), "per second");
  const part = last?.all > 0 ? `per second, ${Math.round((100 * last.refused) / last.all)} %` : "per second";
  showText("now-refused", rate(last?.refused), part, last?.refused > 0 ? "warn" : "");
  showText("now-p50", duration(last?.p50));
  showText("now-p99", duration(last?.p99));
  const nodes = state.store.nodes;
  const about = nodes.length === 0 ? "in this process" : nodes.length > 1 ? `${nodes.length} nodes` : duration(nodes[0].p50_ms);
  showText("now-store", state.store.up ? "up" : "down", state.store.up ? about : "on_failure applies", state.store.up ? "good" : "bad");
  showLink(...(state.draining ? ["draining", "bad"] : ["live", "good"]));
  byId("about").textContent = [
    state.instance,
    `version ${state.version}`,
    `up ${age(state.time_ms - state.started_ms)}`,
    `${whole(state.connections)} connections`,
    `${whole(state.waiting)} waiting requests`,
  ].join(" · ");
  showProblems(problemsOf(state));

  shadowing = new Set(state.limits.filter((limit) => limit.shadows).map((limit) => limit.limit));
  tables.busiest.show(state.top.requests.slice(0, 10));
  tables.refused.show(state.top.refused.slice(0, 10));
  tables.limits.show(state.limits);
  tables.routes.show(state.routes.filter((route) => route.route !== "" || Object.values(route.requests).some(Boolean)));
  tables.upstreams.show(
    state.upstreams.flatMap(({ upstream, servers }) => servers.map((server) => ({ upstream, ...server }))),
  );
  tables.store.show(state.store.nodes);
  const { instances, memory_bytes: used, memory_max_bytes: most, failures_per_second: failures } = state.store;
  byId("memory").textContent =
    `Counts in this process: ${bytes(used)} of ${bytes(most)}. Decisions without the store: ${rate(failures)} per second. ` +
    `Gateways that share the limits (store.instances): ${instances ?? "not known yet"}.`;
  showReload(state.reload);
  showLimits(state.limits.map((limit) => limit.limit));
  charts.forEach((chart) => chart.render());
}

/** Returns a long duration, in its two largest units. */
function age(ms) {
  const minutes = Math.floor(Math.max(0, ms) / 60_000);
  const [hours, days] = [Math.floor(minutes / 60), Math.floor(minutes / 1_440)];
  if (days > 0) return `${days} d ${hours % 24} h`;
  return hours > 0 ? `${hours} h ${minutes % 60} min` : `${minutes} min`;
}

/** Returns what is wrong now, each with its mood. */
function problemsOf(state) {
  const problems = [];
  const add = (text, mood = "bad") => problems.push({ text, mood });
  if (state.draining) add("The gateway is draining, and will end.", "warn");
  if (!state.store.up) add("The store is down: limits apply their on_failure.");
  else if (state.degraded) add("A limit counts new keys by network, since its share of max_memory is used up.", "warn");
  if (state.rules_feed_up === false) add("The management server sends no rules that can be used: the last good ones stay in use.", "warn");
  for (const { upstream, servers } of state.upstreams) {
    const away = servers.filter((server) => stateOf(server) !== "up");
    const all = away.length === servers.length ? "All servers are" : `${away.length} of ${servers.length} servers are`;
    if (away.length > 0) add(`Upstream ${upstream}: ${all} down, ejected or failing (${away.map((server) => server.server).join(", ")}).`);
  }
  if (state.reload && !state.reload.good) add("The last reload failed: the running configuration is older than the file.");
  for (const { place, expires_ms: expires } of state.certificates) {
    const date = new Date(expires).toISOString().slice(0, 10);
    const has = expires <= state.time_ms;
    add(`Certificate ${place} ${has ? "expired on" : "expires on"} ${date}.`, has ? "bad" : "warn");
  }
  return problems;
}

function showProblems(problems) {
  const strip = byId("problems");
  if (strip.dataset.shown === JSON.stringify(problems)) return;
  strip.dataset.shown = JSON.stringify(problems);
  strip.hidden = problems.length === 0;
  strip.replaceChildren(...problems.map(({ text, mood }) => make("li", mood, text)));
}

function showReload(reload) {
  const [changes, fault] = [byId("changes"), byId("fault")];
  if (!reload) {
    showText("reload", "None since the process started.");
    return;
  }
  const when = new Date(reload.time_ms).toLocaleString("en-GB");
  const changed = reload.changes.length > 0 ? "changes:" : "no changes.";
  const how = reload.good ? changed : "the file is invalid, and the running configuration stays in use:";
  showText("reload", `${when}: ${how}`, "", reload.good ? "good" : "bad");
  if (changes.textContent !== reload.changes.join("")) {
    changes.replaceChildren(...reload.changes.map((change) => make("li", "", change)));
  }
  fault.hidden = reload.good;
  fault.textContent = reload.fault ?? "";
}

function showLimits(names) {
  const select = byId("limit");
  if ([...select.options].map((option) => option.value).join() === names.join()) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => make("option", "", name)));
  if (names.includes(chosen)) select.value = chosen;
}

byId("search").addEventListener("input", () => {
  sought = byId("search").value.trim().toLowerCase();
  Object.values(tables).forEach((table) => table.show(table.items, true));
});

// What the page asks for by itself: overrides, bans, and the delays of rejected keys.

/** The delay of a rejected key and the time at which it was told, by limit and key. */
const delays = new Map();

/** Returns the time until a rejected key has room, in milliseconds, or null if it isn't known. */
function delayOf({ limit, written }) {
  const told = delays.get(`${limit} ${written}`);
  return told ? Math.max(0, told.ms - (Date.now() - told.at)) : null;
}

async function askForDelays() {
  const rejected = tables.refused.items.filter((hit) => hit.written !== null);
  const ids = new Set(rejected.map(({ limit, written }) => `${limit} ${written}`));
  [...delays.keys()].filter((id) => !ids.has(id)).forEach((id) => delays.delete(id));
  for (const { limit, written } of rejected) {
    const { ok, data } = await ask("GET", pathOf({ limit, key: written }));
    if (ok && data.retry_after_ms !== null) delays.set(`${limit} ${written}`, { ms: data.retry_after_ms, at: Date.now() });
    else delays.delete(`${limit} ${written}`);
  }
}

async function askForOverridesAndBans() {
  const { ok, data, problem } = await ask("GET", "/api/limits");
  if (!ok) {
    for (const table of [tables.overrides, tables.bans]) table.showUnknown(`Not known: ${problem}.`);
    return;
  }
  const own = data.flatMap(({ limit, override, keys, file_keys: inFile }) => [
    ...(override ? [{ limit, key: null, from: "set", ...override }] : []),
    ...keys.map((set) => ({ limit, from: "set", ...set })),
    ...inFile.map((own) => ({ limit, from: "file", ends_in_ms: null, ...own })),
  ]);
  tables.overrides.show(own.slice(0, OVERRIDES_SHOWN));
  const { store_error: fault } = data.find(({ store_error }) => store_error) ?? {};
  tables.bans.show(data.flatMap(({ limit, bans }) => bans.map((ban) => ({ limit, ...ban }))));
  if (fault) {
    for (const table of [tables.overrides, tables.bans]) table.showUnknown(`Not known: ${fault}.`);
  }
}

/** The most overrides to show, those that are set first. */
const OVERRIDES_SHOWN = 200;

/** Asks every few seconds while the page is shown and logged in. */
async function askAround() {
  if (!document.hidden && !byId("main").hidden) {
    await askForOverridesAndBans();
    await askForDelays();
  }
  setTimeout(askAround, 3_000);
}

// The event stream.

const SESSION = "/api/session";
let source = null;

function showLink(text, mood) {
  const link = byId("link");
  if (link.textContent !== text) link.textContent = text;
  link.className = `pill ${mood}`;
}

function listen() {
  source?.close();
  source = new EventSource("/events");
  source.addEventListener("history", (event) => {
    samples = [];
    JSON.parse(event.data).samples.map(sampleOf).forEach(keep);
  });
  source.addEventListener("state", (event) => {
    const state = JSON.parse(event.data);
    if (state.sample) keep(sampleOf(state.sample));
    byId("login").hidden = true;
    byId("main").hidden = false;
    showState(state);
  });
  source.addEventListener("error", async () => {
    showLink("not connected", "bad");
    // Otherwise the browser reconnects by itself.
    if (source.readyState !== EventSource.CLOSED) return;
    const { data } = await ask("GET", SESSION);
    if (data?.by === "nothing") askToLogIn();
    else setTimeout(listen, 3_000);
  });
}

function askToLogIn() {
  source?.close();
  showLink("not logged in", "");
  byId("main").hidden = true;
  byId("log-out").hidden = true;
  byId("login").hidden = false;
  byId("token").focus();
}

byId("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { ok, problem } = await ask("POST", SESSION, { token: byId("token").value });
  byId("login-said").textContent = ok ? "" : problem;
  if (!ok) return;
  byId("token").value = "";
  byId("login").hidden = true;
  byId("log-out").hidden = false;
  listen();
});

byId("log-out").addEventListener("click", async () => {
  await ask("DELETE", SESSION);
  askToLogIn();
});

// Looking up a key.

/** Sends a request to the gateway. Returns whether it succeeded, the response's data, and the problem's text. */
async function ask(method, path, body) {
  try {
    const headers = method === "GET" ? {} : { "content-type": "application/json" };
    const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
    const text = await answer.text();
    const data = text === "" ? null : JSON.parse(text);
    if (answer.status === 401 && path !== SESSION) askToLogIn();
    return { ok: answer.ok, data, problem: data?.detail ?? `the gateway responded with status ${answer.status}` };
  } catch {
    return { ok: false, data: null, problem: "the gateway can't be reached" };
  }
}

/** The key that is shown: its limit, and the key as it is written in API paths. */
let shown = null;

const pathOf = ({ limit, key }) => `/api/limits/${encodeURIComponent(limit)}/keys/${encodeURIComponent(key)}`;

function say(text, isBad) {
  byId("said").textContent = text;
  byId("said").className = `said ${isBad ? "bad" : "good"}`;
}

async function lookUp(limit, key) {
  byId("limit").value = limit;
  byId("key").value = key;
  shown = { limit, key };
  say("");
  if (await showKey()) byId("found").focus();
}

async function showKey() {
  const about = shown;
  const { ok, data, problem } = await ask("GET", pathOf(about));
  // Another key may have been looked up meanwhile, which the buttons are about then.
  if (shown !== about) return false;
  byId("found").hidden = !ok;
  if (!ok) {
    say(problem, true);
    return false;
  }
  byId("found-key").textContent = data.key;
  byId("found-rate").textContent = data.override ? `${data.rate} (set)` : data.rate;
  byId("found-used").textContent = data.used.toLocaleString("en");
  byId("found-left").textContent = data.remaining.toLocaleString("en");
  byId("found-wait").textContent = data.retry_after_ms ? duration(data.retry_after_ms) : "–";
  const all = data.used + data.remaining;
  byId("found-meter").value = all === 0 ? 1 : data.used / all;
  return true;
}

async function change(method, path, body, done) {
  const about = shown;
  const { ok, data, problem } = await ask(method, path, body);
  if (!ok) say(shown === about ? problem : `${about.key}: ${problem}`, true);
  else if (shown === about && (await showKey())) say(done(data));
}

byId("look-up").addEventListener("submit", (event) => {
  event.preventDefault();
  lookUp(byId("limit").value, byId("key").value);
});

byId("set").addEventListener("submit", (event) => {
  event.preventDefault();
  const [rate, lasts] = [byId("rate").value, byId("for").value];
  change("PUT", `${pathOf(shown)}/override`, { rate, for: lasts }, (set) => `The key's rate is ${set.rate} for ${lasts}.`);
});

byId("unset").addEventListener("click", () => {
  const done = ({ unset }) => (unset ? "The file's rate applies again." : "No rate was set.");
  change("DELETE", `${pathOf(shown)}/override`, null, done);
});

byId("reset").addEventListener("click", () => {
  change("DELETE", pathOf(shown), null, () => "The count was reset.");
});

ask("GET", SESSION).then(({ data }) => {
  byId("log-out").hidden = data?.by !== "login";
  if (data?.by === "nothing") askToLogIn();
  else listen();
});
setTimeout(askAround, 1_000);
