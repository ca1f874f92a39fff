// The dashboard: shows what /events tells, and asks and changes by /api. Whatever comes from the gateway is shown as
// text (textContent), never as markup.
"use strict";

const byId = (id) => document.getElementById(id);

/** An element with a class and a text. */
function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Numbers as people read them.

function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond === 0) return "0";
  return perSecond < 9.95 ? perSecond.toFixed(1) : Math.round(perSecond).toLocaleString("en");
}

function duration(ms) {
  if (ms === null || ms === undefined) return "–";
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

// What goes on.

const SPAN_MS = 600_000;
/** A sample each second; see the columns of the event `history`. */
let samples = [];

function sampleOf(row) {
  const [time, ok, redirected, rejected, failed, refused, p50, p99] = row;
  return { time, served: ok + redirected, rejected, failed, refused, p50, p99 };
}

function keep(sample) {
  const last = samples.at(-1);
  if (last && sample.time <= last.time) return;
  // What the page has missed is a gap.
  const seconds = last && sample.time - last.time < 3_000 ? (sample.time - last.time) / 1_000 : null;
  for (const name of ["served", "rejected", "failed", "refused"]) {
    sample[name] = seconds === null ? null : sample[name] / seconds;
  }
  samples.push(sample);
  while (samples[0].time < sample.time - SPAN_MS) samples.shift();
}

// Charts: SVG, as wide as there is room.

const SVG = "http://www.w3.org/2000/svg";

function draw(parent, name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

/** The least of 1, 2 and 5 times a power of ten that isn't less. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least * 0.999);
}

/**
 * A chart of series, each with a name, a class, and the value of a sample. Stacked ones are areas, one on the other. With a
 * pointer or the arrow keys a second is picked, whose values the legend shows instead of the last one's.
 */
class Chart {
  constructor(place, label, series, { stacked, show }) {
    Object.assign(this, { label, series, stacked, show, picked: null });
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

  /** The place of the sample that is nearest to a time. */
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
    const [left, right, top, bottom] = [44, 4, 8, 22];
    const now = samples.at(-1)?.time ?? Date.now();
    const x = (time) => left + (1 - (now - time) / SPAN_MS) * (width - left - right);
    this.timeAt = (at) => now - (1 - (at - left) / (width - left - right)) * SPAN_MS;
    const values = samples.map((sample) => {
      let sum = 0;
      return this.series.map(({ value }) => {
        const own = value(sample);
        if (own === null || !this.stacked) return own;
        sum += own;
        return sum;
      });
    });
    const most = Math.max(this.stacked ? 4 : 1, ...values.flat());
    const step = niceStep(most / 4);
    const ceiling = Math.ceil(most / step) * step;
    const y = (value) => height - bottom - (value / ceiling) * (height - top - bottom);

    this.svg.replaceChildren();
    for (let value = 0; value <= ceiling + step / 2; value += step) {
      draw(this.svg, "line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) });
      draw(this.svg, "text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, this.show(value, true));
    }
    for (let minutes = 0; minutes <= 10; minutes += 2) {
      const text = minutes === 0 ? "now" : `−${minutes} min`;
      const anchor = minutes === 0 ? "end" : minutes === 10 ? "start" : "middle";
      draw(this.svg, "text", { x: x(now - minutes * 60_000), y: height - 6, "text-anchor": anchor }, text);
    }
    // From the last to the first, so that what is below lies on top.
    for (let at = this.series.length - 1; at >= 0; at -= 1) {
      for (const piece of this.pieces(values, at)) {
        const line = piece.map((of) => `${x(samples[of].time).toFixed(1)},${y(values[of][at]).toFixed(1)}`).join("L");
        const [first, last] = [piece[0], piece.at(-1)].map((of) => x(samples[of].time).toFixed(1));
        const floor = at === 0 ? null : piece.map((of) => `${x(samples[of].time).toFixed(1)},${y(values[of][at - 1]).toFixed(1)}`);
        const under = floor ? floor.reverse().join("L") : `${last},${y(0)}L${first},${y(0)}`;
        const d = this.stacked ? `M${line}L${under}Z` : `M${line}`;
        draw(this.svg, "path", { class: `${this.stacked ? "area" : "line"} ${this.series[at].className}`, d });
      }
    }
    const of = this.picked === null ? samples.length - 1 : this.at(this.picked);
    if (this.picked !== null && of >= 0) {
      const at = x(samples[of].time);
      draw(this.svg, "line", { class: "cursor", x1: at, x2: at, y1: top, y2: height - bottom });
    }
    this.tell(samples[of]);
  }

  /** The places of samples that have a value, where they follow one another. */
  pieces(values, series) {
    const pieces = [];
    let piece = [];
    for (let at = 0; at <= values.length; at += 1) {
      if (at < values.length && values[at][series] !== null) {
        piece.push(at);
      } else if (piece.length > 0) {
        pieces.push(piece);
        piece = [];
      }
    }
    return pieces;
  }

  tell(sample) {
    const told = this.series.map(({ name, value }) => `${name} ${sample ? this.show(value(sample)) : "–"}`);
    const when = this.picked === null || !sample ? "now" : `at ${clock(sample.time)}`;
    this.svg.setAttribute("aria-label", `${this.label} ${when}: ${told.join(", ")}`);
    this.legend.replaceChildren(
      ...this.series.map(({ className }, at) => {
        const item = make("li");
        item.append(make("i", className), told[at]);
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

/**
 * A table of columns, each with a title, the text of a row, and perhaps classes. Rows keep their elements, and their order
 * while one of them has the focus, so that nothing moves under a hand.
 */
class Table {
  constructor(place, title, columns, { idOf, empty, act }) {
    Object.assign(this, { columns, idOf, act, rows: new Map() });
    const scroll = make("div", "scroll");
    const table = make("table");
    table.setAttribute("aria-label", title);
    const head = make("tr");
    for (const { title, className } of columns) {
      const cell = make("th", className, title);
      cell.scope = "col";
      head.append(cell);
    }
    if (act) {
      const cell = make("th");
      cell.scope = "col";
      cell.setAttribute("aria-label", "Action");
      head.append(cell);
    }
    table.createTHead().append(head);
    this.body = table.createTBody();
    this.scroll = scroll;
    this.empty = make("p", "empty", empty);
    scroll.append(table);
    place.append(scroll, this.empty);
  }

  show(items) {
    const ids = items.map(this.idOf);
    this.scroll.hidden = items.length === 0;
    this.empty.hidden = items.length > 0;
    const isHeld = this.body.contains(document.activeElement) || this.body.matches(":hover");
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
      this.columns.forEach(({ text, className, mood }, column) => {
        const cell = row.cells[column];
        const shown = String(text(item) ?? "–");
        if (cell.textContent !== shown) cell.textContent = shown;
        const classes = [className, mood?.(item)].filter(Boolean).join(" ");
        if (cell.className !== classes) cell.className = classes;
        if (className?.includes("key")) cell.title = shown;
      });
      if (this.act) row.button.hidden = !this.act.fits(item);
      if (!isHeld && this.body.rows[at] !== row) this.body.insertBefore(row, this.body.rows[at]);
    });
  }

  makeRow() {
    const row = make("tr");
    this.columns.forEach((_, at) => {
      const cell = make(at === 0 ? "th" : "td");
      if (at === 0) cell.scope = "row";
      row.append(cell);
    });
    if (this.act) {
      row.button = make("button", "", this.act.name);
      row.button.type = "button";
      row.button.addEventListener("click", () => this.act.does(row.item));
      const cell = make("td");
      cell.append(row.button);
      row.append(cell);
    }
    return row;
  }
}

const number = (title, text, more = "") => ({ title, text, className: `number ${more}`.trim() });

function keysTable(place, title, empty) {
  const columns = [
    { title: "Key", className: "key", text: (hit) => hit.written ?? hit.key },
    { title: "Limit", text: (hit) => hit.limit },
    number("a second", (hit) => rate(hit.per_second)),
    number("counted", (hit) => counted(hit), "wide"),
  ];
  const act = { name: "Look up", fits: (hit) => hit.written !== null, does: (hit) => lookUp(hit.limit, hit.written) };
  return new Table(byId(place), title, columns, { idOf: (hit) => `${hit.limit} ${hit.key}`, empty, act });
}

function counted({ at_least: least, at_most: most }) {
  const text = least.toLocaleString("en");
  return most > least ? `${text} – ${most.toLocaleString("en")}` : text;
}

const tables = {
  busiest: keysTable("busiest", "Busiest keys", "No limit has counted anybody."),
  refused: keysTable("refused", "Most refused keys", "Nobody was refused."),
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
      { title: "Algorithm", className: "wide", text: (limit) => limit.algorithm + (limit.shadows ? ", shadow" : "") },
      number("admitted", (limit) => rate(limit.per_second.admitted)),
      {
        ...number("refused", (limit) => rate(limit.per_second.refused)),
        mood: (limit) => (limit.per_second.refused > 0 && !limit.shadows ? "warn" : ""),
      },
      number("exempt", (limit) => rate(limit.per_second.exempt + limit.per_second.skipped), "wide"),
      number("refused in all", (limit) => limit.decisions.refused.toLocaleString("en"), "wide"),
    ],
    { idOf: (limit) => limit.limit, empty: "There are no limits." },
  ),
  routes: new Table(
    byId("routes"),
    "Routes",
    [
      { title: "Route", text: (route) => route.route || "(none matched)" },
      { title: "Limits", className: "wide", text: (route) => namesOf(route, "limits") },
      { title: "Upstream", className: "wide", text: (route) => namesOf(route, "upstream") },
      number("requests", (route) => rate(route.per_second)),
      number("4xx", (route) => share(route, "4xx")),
      { ...number("5xx", (route) => share(route, "5xx")), mood: (route) => (route.recent["5xx"] > 0 ? "bad" : "") },
      number("median", (route) => duration(route.p50_ms), "wide"),
      number("99th", (route) => duration(route.p99_ms)),
    ],
    { idOf: (route) => route.route, empty: "" },
  ),
  upstreams: new Table(
    byId("upstreams"),
    "Servers of upstreams",
    [
      { title: "Upstream", text: (server) => server.upstream },
      { title: "Server", text: (server) => server.server },
      { title: "State", text: stateOf, mood: (server) => (stateOf(server) === "up" ? "good" : "bad") },
      number("a second", (server) => rate(server.answers_per_second)),
      { ...number("failed", (server) => rate(server.failures_per_second)), mood: (server) => (server.failures_per_second > 0 ? "bad" : "") },
      number("in flight", (server) => server.in_flight, "wide"),
      number("99th", (server) => duration(server.p99_ms)),
    ],
    { idOf: (server) => `${server.upstream} ${server.server}`, empty: "The gateway answers everything itself." },
  ),
  store: new Table(
    byId("store"),
    "Nodes of the store",
    [
      { title: "Node", text: (node) => node.node },
      { title: "Breaker", text: (node) => (node.breaker_open ? "open" : "closed"), mood: (node) => (node.breaker_open ? "bad" : "good") },
      number("opened", (node) => node.breaker_openings, "wide"),
      number("calls a second", (node) => rate(node.calls_per_second)),
      number("batch", (node) => (node.charges_per_call === null ? "–" : node.charges_per_call.toFixed(1))),
      number("median", (node) => duration(node.p50_ms), "wide"),
      number("99th", (node) => duration(node.p99_ms)),
    ],
    { idOf: (node) => node.node, empty: "Limits are counted in this process." },
  ),
};

function namesOf(route, what) {
  return [...new Set(route.matches.flatMap((match) => match[what] ?? []))].join(", ") || "–";
}

function share(route, status) {
  const all = Object.values(route.recent).reduce((sum, count) => sum + count, 0);
  if (all === 0) return "–";
  const percent = (100 * route.recent[status]) / all;
  return percent === 0 ? "0" : `${percent < 9.95 ? percent.toFixed(1) : Math.round(percent)} %`;
}

function stateOf(server) {
  if (!server.up) return "down";
  return server.ejected_for_ms === null ? "up" : `left out, ${duration(server.ejected_for_ms)}`;
}

const charts = [
  new Chart(
    byId("throughput"),
    "Requests a second",
    [
      { name: "2xx, 3xx", className: "served", value: (sample) => sample.served },
      { name: "4xx", className: "rejected", value: (sample) => sample.rejected },
      { name: "5xx", className: "failed", value: (sample) => sample.failed },
    ],
    { stacked: true, show: (value, isTick) => (isTick && value >= 10_000 ? `${value / 1_000}k` : rate(value)) },
  ),
  new Chart(
    byId("latency"),
    "Latency",
    [
      { name: "median", className: "served", value: (sample) => sample.p50 },
      { name: "99th percentile", className: "slow", value: (sample) => sample.p99 },
    ],
    { stacked: false, show: (value, isTick) => (isTick && value === 0 ? "0" : duration(value)) },
  ),
];

/** Shows a text with a remark of less weight. */
function tell(id, text, remark, mood = "") {
  const place = byId(id);
  place.className = mood;
  place.replaceChildren(text);
  if (remark) place.append(make("small", "", remark));
}

function showState(state) {
  const last = samples.at(-1);
  const requests = last && last.served !== null ? last.served + last.rejected + last.failed : null;
  tell("now-requests", rate(requests), "a second");
  const part = requests > 0 ? `a second, ${Math.round((100 * last.refused) / requests)} %` : "a second";
  tell("now-refused", rate(last?.refused), part, last?.refused > 0 ? "warn" : "");
  tell("now-p50", duration(last?.p50));
  tell("now-p99", duration(last?.p99));
  const kind = state.store.nodes.length > 0 ? "" : "in process";
  tell("now-store", state.store.up ? "up" : "down", kind, state.store.up ? "good" : "bad");
  showLink(...(state.draining ? ["draining", "bad"] : ["live", "good"]));
  byId("about").textContent =
    `${state.version} · ${state.connections.toLocaleString("en")} connections · ${state.waiting} waiting for room`;

  tables.busiest.show(state.top.requests.slice(0, 10));
  tables.refused.show(state.top.refused.slice(0, 10));
  tables.limits.show(state.limits);
  tables.routes.show(state.routes.filter((route) => route.route !== "" || Object.values(route.requests).some(Boolean)));
  tables.upstreams.show(
    state.upstreams.flatMap(({ upstream, servers }) => servers.map((server) => ({ upstream, ...server }))),
  );
  tables.store.show(state.store.nodes);
  const { memory_bytes: used, memory_max_bytes: most, failures_per_second: failures } = state.store;
  byId("memory").textContent =
    `Counts in this process: ${bytes(used)} of ${bytes(most)}. Decisions without the store: ${rate(failures)} a second.`;
  showReload(state.reload);
  showLimits(state.limits.map((limit) => limit.limit));
  charts.forEach((chart) => chart.render());
}

function showReload(reload) {
  const [changes, fault] = [byId("changes"), byId("fault")];
  if (!reload) {
    tell("reload", "None since the start.");
    return;
  }
  const when = new Date(reload.time_ms).toLocaleString("en-GB");
  const how = reload.good
    ? ["good: ", reload.changes.length > 0 ? "what changed:" : "nothing changed.", "good"]
    : ["the file is wrong, and the running configuration stays:", "", "bad"];
  tell("reload", `${when}, ${how[0]}${how[1]}`, "", how[2]);
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

// The stream of events.

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
    // Else it is tried again by the browser.
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

// A key.

/** Asks the gateway: whether it did it, what it answers, or what is wrong. */
async function ask(method, path, body) {
  try {
    const headers = method === "GET" ? {} : { "content-type": "application/json" };
    const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
    const text = await answer.text();
    const data = text === "" ? null : JSON.parse(text);
    if (answer.status === 401 && path !== SESSION) askToLogIn();
    return { ok: answer.ok, data, problem: data?.detail ?? `the gateway answers ${answer.status}` };
  } catch {
    return { ok: false, data: null, problem: "the gateway can't be reached" };
  }
}

/** The key that is shown: its limit, and it as people write it. */
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
  if (await showKey()) byId("key").scrollIntoView({ block: "center" });
}

async function showKey() {
  const { ok, data, problem } = await ask("GET", pathOf(shown));
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
  const { ok, data, problem } = await ask(method, path, body);
  if (!ok) say(problem, true);
  else if (await showKey()) say(done(data));
}

byId("look-up").addEventListener("submit", (event) => {
  event.preventDefault();
  lookUp(byId("limit").value, byId("key").value);
});

byId("set").addEventListener("submit", (event) => {
  event.preventDefault();
  const [rate, lasts] = [byId("rate").value, byId("for").value];
  change("PUT", `${pathOf(shown)}/override`, { rate, for: lasts }, (set) => `The key has ${set.rate} for ${lasts}.`);
});

byId("unset").addEventListener("click", () => {
  const done = ({ unset }) => (unset ? "The file's rate holds again." : "Nothing was set.");
  change("DELETE", `${pathOf(shown)}/override`, null, done);
});

byId("reset").addEventListener("click", () => {
  change("DELETE", pathOf(shown), null, () => "The count is reset.");
});

ask("GET", SESSION).then(({ data }) => {
  byId("log-out").hidden = data?.by !== "login";
  if (data?.by === "nothing") askToLogIn();
  else listen();
});
