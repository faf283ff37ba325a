"use strict";
// Draws what /live tells. Whatever it tells becomes text, never markup: names are others' to choose.

const HISTORY = 120, SHOWN = 40, DECISIONS = 12;
// Filled in by page.py: for each reason its colour class and its meaning.
const REASONS = {/* reasons */};
const byId = (id) => document.getElementById(id);
const history = [];
let picture = null, source = null, paused = false, shownConfig = 0;
const shownAll = new Set();

// ---- small helpers

// Without what turns a line around, or hides in it: a name must not change how its neighbours read.
const plain = (text) => String(text).replace(/[^\P{C}\n\t]/gu, "\ufffd");
function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = plain(text);
  return made;
}
function put(node, text) {
  const told = plain(text);
  if (node.textContent !== told) node.textContent = told;
}
function mark(node, name, value) { if (node.dataset[name] !== value) node.dataset[name] = value; }
const known = (value) => value !== null && value !== undefined;
const percent = (value) => known(value) ? `${Math.round(100 * value)} %` : "–";
const count = (value) => value.toLocaleString("en");
function seconds(value) {
  if (!known(value)) return "–";
  if (value < 0.0995) return `${(1000 * value).toPrecision(2)} ms`;
  if (value < 1) return `${Math.round(1000 * value)} ms`;
  return value < 10 ? `${value.toFixed(1)} s` : age(value);
}
function age(value) {
  if (!known(value)) return "–";
  if (value < 60) return `${Math.floor(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  return value < 172800 ? `${Math.floor(value / 3600)} h` : `${Math.floor(value / 86400)} d`;
}
const sum = (values) => values.reduce((a, b) => a + b, 0);
// A list's nodes, made and taken away as there are values; `change` fills the one at its place.
function each(parent, values, make, change) {
  while (parent.children.length > values.length) parent.lastElementChild.remove();
  while (parent.children.length < values.length) parent.append(make());
  values.forEach((value, at) => change(parent.children[at], value));
}

// ---- the head

function say(state, text) { mark(byId("status"), "state", state); put(byId("status"), text); }

function drawHead() {
  put(byId("version"), picture.version);
  const { faults, remarks, configuration } = picture;
  const but = [remarks.length && "with remarks", configuration.refusal && "a change refused"].filter(Boolean);
  if (paused) say("wait", "paused");
  else if (picture.is_ready) say("ready", ["ready", ...but].join(", "));
  else say("bad", faults.includes("draining") ? "draining" : "not ready");
  const told = picture.is_ready ? remarks : faults;
  const trouble = byId("trouble");
  trouble.hidden = !told.length;
  const text = picture.is_ready ? "Ready, but" : "Not ready";
  if (trouble.dataset.told === JSON.stringify([text, told])) return;
  trouble.dataset.told = JSON.stringify([text, told]);
  const box = element("div", "banner bad"), list = element("ul");
  told.forEach((line) => list.append(element("li", "", line)));
  box.append(element("strong", "", text), list);
  trouble.replaceChildren(box);
}

function drawTiles() {
  const recent = columns("").slice(-10), { pools } = picture;
  const rate = recent.length ? sum(recent.map((one) => sum(Object.values(one)))) / recent.length : 0;
  const ready = sum(pools.map((pool) => pool.states.ready || 0));
  const endpoints = sum(pools.map((pool) => pool.endpoints.length));
  const weighed = (field) => {
    const told = pools.filter((pool) => known(pool[field]));
    const weights = told.map((pool) => Math.max(1, pool.picks));
    return told.length ? sum(told.map((pool, at) => pool[field] * weights[at])) / sum(weights) : null;
  };
  const tiles = [
    ["requests a second", rate < 10 ? rate.toFixed(1) : count(Math.round(rate))],
    ["in flight", count(sum(pools.map((pool) => pool.in_flight)))],
    ["endpoints ready", count(ready), ` of ${count(endpoints)}`],
    ["of prompts predicted to be cached", percent(weighed("predicted"))],
    ["found there, as endpoints say", percent(weighed("found"))],
    ["to the first byte", seconds(weighed("first_byte_s"))],
  ];
  each(byId("tiles"), tiles, () => {
    const tile = element("div", "tile"), value = element("b");
    value.append(element("span", "value"), element("small"));
    tile.append(value, element("span", "name"));
    return tile;
  }, (tile, [name, value, more]) => {
    const [figure, small] = tile.firstElementChild.children;
    put(figure, value); put(small, more || ""); put(tile.lastElementChild, name);
  });
}

// ---- reasons over time

// What was picked and refused from one picture to the next: of one pool, or of all.
function columns(pool) {
  const totals = history.map((one) => total(one, pool));
  return totals.slice(1).map((now, at) => Object.fromEntries(
    Object.entries(now).map(([reason, many]) => [reason, many - (totals[at][reason] || 0)])));
}

function total(one, pool) {
  const found = {};
  for (const [name, reasons] of Object.entries(one)) {
    if (pool && name !== pool) continue;
    for (const [reason, many] of Object.entries(reasons)) {
      const key = reason in REASONS ? reason : "refused";
      found[key] = (found[key] || 0) + many;
    }
  }
  return found;
}

function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(4, value)));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}

function drawChart() {
  const pool = byId("which").value, chart = byId("chart"), names = Object.keys(REASONS);
  const seen = columns(pool);
  const heights = seen.map((column) => sum(Object.values(column)));
  const high = roundUp(Math.max(4, ...heights));
  if (!chart.children.length) {
    const svg = (tag) => document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const y of [0.5, 50]) {
      const line = svg("line");
      for (const [name, value] of Object.entries({ x1: 0, x2: 120, y1: y, y2: y })) line.setAttribute(name, value);
      chart.append(line);
    }
    names.forEach((name) => { const path = svg("path"); path.setAttribute("class", REASONS[name][0]); chart.append(path); });
  }
  const base = seen.map(() => 0), start = HISTORY - seen.length;
  names.forEach((name, at) => {
    let above = "", below = "";
    seen.forEach((column, i) => {
      const x = start + i, low = 100 - 100 * base[i] / high;
      base[i] += column[name] || 0;
      const top = 100 - 100 * base[i] / high;
      above += `L${x} ${top.toFixed(2)}H${x + 1}`;
      below = `L${x + 1} ${low.toFixed(2)}H${x}${below}`;
    });
    chart.children[2 + at].setAttribute("d", above ? `M${above.slice(1)}${below}Z` : "");
  });
  put(byId("y-high"), count(high)); put(byId("y-half"), count(high / 2));
  drawLegend(seen, names);
}

function drawLegend(seen, names) {
  const sums = names.map((name) => [name, sum(seen.map((column) => column[name] || 0))]).filter(([, many]) => many);
  const all = sum(sums.map(([, many]) => many));
  each(byId("legend"), sums, () => {
    const key = element("span", "key");
    key.append(element("span"), " ", element("b"));
    return key;
  }, (key, [name, many]) => {
    const [reason, explanation] = [REASONS[name][0], REASONS[name][1]];
    if (key.className !== `key ${reason}`) { key.className = `key ${reason}`; key.title = explanation; }
    put(key.children[0], name); put(key.children[1], percent(many / all));
  });
  const told = sums.map(([name, many]) => `${name} ${percent(many / all)}`).join(", ") || "none";
  byId("chart").setAttribute("aria-label", `Picks of the last two minutes by reason: ${told}`);
}

// ---- pools

const HEADS = [
  ["Endpoint", ""], ["State", ""], ["In flight", "n"], ["Share of picks", "n"], ["First byte", "n"],
  ["Hits predicted", "n"], ["Hits measured", "n"],
];

function makePool() {
  const section = element("section", "pool"), head = element("div", "head"), card = element("div", "card table");
  head.append(element("h2"), element("span", "chip"));
  const table = element("table", "rows"), thead = element("thead"), tr = element("tr"), tbody = element("tbody");
  [[table, "table"], [thead, "rowgroup"], [tr, "row"], [tbody, "rowgroup"]].forEach(([node, role]) => node.setAttribute("role", role));
  HEADS.forEach(([name, css]) => {
    const th = element("th", css, name);
    th.scope = "col"; th.setAttribute("role", "columnheader");
    tr.append(th);
  });
  thead.append(tr); table.append(thead, tbody);
  const more = element("button", "more");
  more.type = "button";
  more.addEventListener("click", () => {
    const { name } = section.dataset;
    if (!shownAll.delete(name)) shownAll.add(name);
    drawPools();
  });
  card.append(table, element("p", "nothing", "No endpoint is known."), more);
  section.append(head, element("p", "facts"), card);
  return section;
}

function drawPools() {
  each(byId("pools"), picture.pools, makePool, drawPool);
  const names = picture.pools.map((pool) => pool.name);
  options(byId("which"), names); options(byId("pool"), names);
  byId("which-label").hidden = names.length < 2;
}

function options(select, names) {
  if (JSON.stringify(names) === select.dataset.names) return;
  select.dataset.names = JSON.stringify(names);
  const { value } = select;
  select.replaceChildren(select.firstElementChild, ...names.map((name) => {
    const option = element("option", "", name);
    option.value = name;
    return option;
  }));
  select.value = names.includes(value) ? value : "";
}

function drawPool(section, pool) {
  const [head, facts, card] = section.children;
  mark(section, "name", pool.name);
  put(head.children[0], pool.name); put(head.children[1], pool.strategy);
  card.firstElementChild.setAttribute("aria-label", `Endpoints of ${pool.name}`);
  const states = Object.entries(pool.states).map(([state, many]) => `${count(many)} ${state}`).join(", ");
  const told = [
    [states || "no endpoints", ""],
    [count(pool.in_flight), " in flight"],
    ...(known(pool.balance) ? [[pool.balance.toFixed(1), " × the mean on the busiest"]] : []),
    ...(known(pool.bound) ? [[count(pool.bound), " fill an endpoint"]] : []),
    ...(known(pool.max_in_flight) ? [[count(pool.max_in_flight), " each fill the pool"]] : []),
    ...(known(pool.bound) || known(pool.max_in_flight) || !pool.endpoints.length ? [] : [["no limit", " to what an endpoint gets"]]),
    ...(known(pool.predicted) ? [[percent(pool.predicted), " hits predicted"]] : []),
    ...(known(pool.found) ? [[percent(pool.found), " found"]] : []),
    ...(known(pool.first_byte_s) ? [[seconds(pool.first_byte_s), " to the first byte"]] : []),
    [age(pool.age_s), known(pool.age_s) ? " since its list was confirmed" : " no list yet"],
    ...(pool.fault ? [[pool.fault, ""]] : []),
  ];
  each(facts, told, () => { const one = element("span"); one.append(element("b"), element("span")); return one; },
    (one, [value, words]) => { put(one.children[0], value); put(one.children[1], words); });
  const [table, none, more] = card.children, rows = chosen(pool);
  table.hidden = !pool.endpoints.length; none.hidden = !table.hidden;
  const most = Math.max(1, ...pool.endpoints.map((row) => row[3]));
  const share = Math.max(0.01, ...pool.endpoints.map((row) => row[4] || 0));
  each(table.tBodies[0], rows, makeRow, (tr, row) => drawRow(tr, row, pool, most, share));
  more.hidden = pool.endpoints.length <= SHOWN;
  const all = `Show all ${count(pool.endpoints.length)}`;
  put(more, shownAll.has(pool.name) ? `Show ${SHOWN}: in trouble, then busiest` : all);
}

// Of many endpoints those in trouble, then the busiest.
function chosen(pool) {
  if (pool.endpoints.length <= SHOWN || shownAll.has(pool.name)) return pool.endpoints;
  const rank = (row) => (row[2] === "ready" ? 0 : 1e9) + row[3];
  return [...pool.endpoints].sort((a, b) => rank(b) - rank(a)).slice(0, SHOWN);
}

function makeRow() {
  const tr = element("tr"), th = element("th");
  tr.setAttribute("role", "row");
  th.scope = "row"; th.setAttribute("role", "rowheader");
  th.append(element("span"), element("small"));
  tr.append(th);
  HEADS.slice(1).forEach(([name, css], at) => {
    const td = element("td", css);
    td.setAttribute("role", "cell");
    td.dataset.label = name;
    if (at === 0) td.append(element("span", "state"));
    else if (at === 3) td.append(element("span"));
    else {
      const gauge = element("span", `gauge ${["", "", "", "", "guess", "warm"][at]}`), bar = element("i");
      bar.setAttribute("aria-hidden", "true");
      gauge.append(bar, element("span"));
      td.append(gauge);
    }
    tr.append(td);
  });
  return tr;
}

function gauge(td, value, text) {
  const [bar, words] = td.firstElementChild.children;
  put(words, text);
  const width = Math.min(1, value || 0).toFixed(3);
  if (bar.dataset.v !== width) { bar.dataset.v = width; bar.style.setProperty("--v", width); }
}

function drawRow(tr, row, pool, most, share) {
  const [name, address, state, inFlight, part, left, firstByte, predicted, found, zone] = row;
  const [th, ...cells] = tr.children, bound = known(pool.bound) ? pool.bound : pool.max_in_flight;
  put(th.children[0], name);
  put(th.children[1], [name === address ? "" : address, zone].filter(Boolean).join(" · "));
  const shown = cells[0].firstElementChild;
  mark(shown, "state", state);
  put(shown, left ? `${state}, ${Math.ceil(left)} s` : state === "cooling" ? "on trial" : state);
  gauge(cells[1], inFlight / (bound || most), known(bound) ? `${inFlight} / ${bound}` : `${inFlight}`);
  cells[1].firstElementChild.classList.toggle("full", known(bound) && inFlight >= bound);
  gauge(cells[2], (part || 0) / share, percent(part));
  put(cells[3].firstElementChild, seconds(firstByte));
  gauge(cells[4], predicted, percent(predicted));
  gauge(cells[5], found, percent(found));
}

// ---- decisions

function drawDecisions() {
  const told = picture.decisions.slice(0, DECISIONS);
  byId("no-decisions").hidden = told.length > 0;
  byId("decisions").parentElement.hidden = !told.length;
  each(byId("decisions"), told, () => {
    const tr = element("tr"), th = element("th");
    tr.setAttribute("role", "row"); th.scope = "row"; th.setAttribute("role", "rowheader");
    tr.append(th);
    ["Reason", "Pool", "Prefix", "Age"].forEach((label) => {
      const td = element("td", label === "Prefix" ? "mono" : "");
      td.setAttribute("role", "cell"); td.dataset.label = label;
      td.append(element("span"));
      tr.append(td);
    });
    return tr;
  }, (tr, [, age_s, pool, reason, endpoint, prefix]) => {
    const [th, why, of, key, when] = tr.children, css = (REASONS[reason] || ["refused"])[0];
    put(th, endpoint); put(why.firstElementChild, reason); put(of.firstElementChild, pool);
    put(key.firstElementChild, prefix ? prefix.slice(0, 8) : "–"); put(when.firstElementChild, age_s < 10 ? `${age_s.toFixed(1)} s` : age(age_s));
    if (why.firstElementChild.className !== `why ${css}`) why.firstElementChild.className = `why ${css}`;
    why.title = (REASONS[reason] || ["", ""])[1];
  });
}

// ---- configuration

function drawConfiguration() {
  const { where, number, age_s, refusal } = picture.configuration;
  const changes = number > 1 ? `, the ${number - 1}${["st", "nd", "rd"][number - 2] || "th"} change since the start` : "";
  put(byId("config-facts"), `${where}, in force for ${age(age_s)}${changes}`);
  const box = byId("refusal");
  box.hidden = !refusal;
  if (refusal) {
    if (!box.children.length) box.append(element("strong"), element("pre"));
    put(box.children[0], `A changed file was refused ${age(refusal.age_s)} ago; what was before stays in force`);
    put(box.children[1], refusal.why);
  }
  if (byId("config").open && shownConfig !== number) showConfig(number);
}

async function showConfig(number) {
  shownConfig = number;
  const answer = await fetch("config");
  put(byId("config-text"), await answer.text());
}

// ---- explain

async function explain(event) {
  event.preventDefault();
  const query = new URLSearchParams({ path: byId("path").value });
  if (byId("pool").value) query.set("pool", byId("pool").value);
  try {
    const answer = await fetch(`explain?${query}`, {
      method: "POST", body: byId("body").value, headers: { "content-type": "application/json" },
    });
    const found = JSON.parse(await answer.text());
    if (answer.ok) tell(...explained(found));
    else tell(element("p", "bad", refusalOf(found)));
  } catch (error) {
    tell(element("p", "bad", `No answer: ${error.message}`));
  }
}

// A screen reader says the verdict at once; the grounds are there to be read.
function tell(verdict, ...grounds) {
  byId("verdict").replaceChildren(verdict);
  byId("grounds").replaceChildren(...grounds);
}

const refusalOf = (found) => `It would be refused: ${(found.error && found.error.message) || JSON.stringify(found)}`;

function explained(found) {
  const { endpoint, address, reason, pool, strategy, ...rest } = found;
  const why = (REASONS[reason] || ["", reason])[1];
  const nodes = [element("h3", "", `${endpoint} would get it: ${why}`)];
  const facts = element("dl"), tables = [];
  const fact = (name, value) => facts.append(element("dt", "", name.replaceAll("_", " ")), element("dd", "", value));
  fact("reason", reason); fact("pool", `${pool} (${strategy})`);
  if (address !== endpoint) fact("address", address);
  for (const [name, value] of Object.entries(rest)) {
    if (Array.isArray(value) && value.length && typeof value[0] === "object") tables.push(tableOf(name, value, endpoint));
    else if (Array.isArray(value) ? value.length : value && typeof value === "object" ? Object.keys(value).length : known(value)) {
      const pairs = typeof value === "object" ? Object.entries(value).map(([key, word]) => `${key}: ${word}`) : [value];
      fact(name, Array.isArray(value) ? value.join(", ") : pairs.join(", "));
    }
  }
  return [...nodes, facts, ...tables.flat()];
}

function tableOf(name, rows, chosenName) {
  const title = element("h4", "", name.replaceAll("_", " ")), wide = element("div", "wide"), table = element("table");
  wide.tabIndex = 0;
  wide.setAttribute("role", "region"); wide.setAttribute("aria-label", name);
  // What decides stands beside the name: a narrow window shows the first columns.
  const columns = Object.keys(rows[0]).sort((a, b) => (b === "endpoint") - (a === "endpoint") || (b === "cost_ms") - (a === "cost_ms"));
  const head = table.createTHead().insertRow(), body = table.createTBody();
  columns.forEach((column) => { const th = element("th", "", column.replaceAll("_", " ")); th.scope = "col"; head.append(th); });
  rows.forEach((row) => {
    const tr = body.insertRow();
    columns.forEach((column) => {
      const value = row[column], text = value === true ? "yes" : value === false ? "no" : String(value);
      tr.append(element("td", "", column === "endpoint" && value === chosenName ? `${text} ✓` : text));
    });
  });
  wide.append(table);
  return [title, wide];
}

// ---- the stream: only while the page is seen

function draw() {
  drawHead();
  if (paused) return;
  drawTiles(); drawChart(); drawPools(); drawDecisions(); drawConfiguration();
}

function open() {
  if (source || document.hidden) return;
  source = new EventSource("live");
  source.addEventListener("history", (event) => { history.length = 0; history.push(...JSON.parse(event.data)); });
  source.addEventListener("message", (event) => {
    const told = JSON.parse(event.data);
    history.push(told.reasons);
    history.splice(0, history.length - HISTORY - 1);
    if (!paused || !picture) picture = told;
    draw();
  });
  source.addEventListener("error", () => {
    say("bad", "no connection to the service");
    if (source && source.readyState === EventSource.CLOSED) { close(); setTimeout(open, 5000); }
  });
}

function close() { if (source) source.close(); source = null; }

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  if (picture) draw();
});
byId("which").addEventListener("change", () => picture && drawChart());
byId("config").addEventListener("toggle", () => picture && drawConfiguration());
byId("explain").addEventListener("submit", explain);
byId("body").value = JSON.stringify({ model: "your-model", messages: [{ role: "user", content: "Tell me about prefix caches." }] }, null, 2);
open();
