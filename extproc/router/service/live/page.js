"use strict";
// Draws what /live tells. Whatever it tells becomes text, never markup: names are others' to choose.

const HISTORY = 120, SHOWN = 40, DECISIONS = 12, TREND_S = 600, MINUTE_S = 60, MARKS = 5;
// Filled in by page.py: for each reason its colour class and its meaning.
const REASONS = {/* reasons */};
const byId = (id) => document.getElementById(id);
const history = [];
// What the page itself remembers: of each pool the figures of every state, and what changed.
const trend = [], marks = [];
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
function lasting(value) {
  const [many, unit] = value < 90 ? [Math.round(value), "second"] : value < 5400 ? [Math.round(value / 60), "minute"] : [Math.round(value / 3600), "hour"];
  return `${many} ${unit}${many === 1 ? "" : "s"}`;
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
  else if (picture.is_ready) {
    const out = sum(picture.pools.map(outOf));
    if (out) but.unshift(`${count(out)} ${out === 1 ? "endpoint" : "endpoints"} out`);
    say(but.length ? "partly" : "ready", ["ready", ...but].join(", "));
  }
  else say("bad", faults.includes("draining") ? "draining" : "not ready");
  const told = picture.is_ready ? remarks : faults;
  const trouble = byId("trouble");
  trouble.hidden = !told.length;
  const text = picture.is_ready ? "Ready, but" : "Not ready";
  if (trouble.dataset.told === JSON.stringify([text, told])) return;
  trouble.dataset.told = JSON.stringify([text, told]);
  const box = element("div", `banner ${picture.is_ready ? "doubtful" : "bad"}`), list = element("ul");
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
  const saved = latest("", "saved"), first = weighed("first_token_s"), found = weighed("found"), predicted = weighed("predicted");
  const tiles = [
    ["requests a second", rate < 10 ? rate.toFixed(1) : count(Math.round(rate))],
    ["in flight", count(sum(pools.map((pool) => pool.in_flight)))],
    ["endpoints ready", count(ready), ` of ${count(endpoints)}`],
    ...(known(found) ? [["of prompt tokens found in caches", percent(found)]] : []),
    ...(known(predicted) ? [["of prompts predicted to be cached", percent(predicted)]] : []),
    ...(known(saved) ? [["of prefill saved in a minute", seconds(saved)]] : []),
    ...(known(first) ? [["to the first token", seconds(first)]] : []),
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
  // The half of each is a round number, too.
  const steps = power < 10 ? [1, 2, 4, 6, 8, 10] : [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10];
  return steps.map((step) => Math.round(step * power)).find((step) => step >= value);
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

// ---- does routing pay: hits and saved prefill over time, and what changed

const OUT = ["cooling", "unhealthy"];
const outOf = (pool) => sum(OUT.map((state) => pool.states[state] || 0));

// Adds a state to what the page remembers, and a mark where it differs from the one before.
function remember(told) {
  const at = Date.now() / 1000, last = trend.at(-1);
  const pools = Object.fromEntries(told.pools.map((pool) => [pool.name, {
    predicted: pool.predicted, found: pool.found, saved: pool.saved_s, picks: pool.picks,
    strategy: pool.strategy, usable: pool.endpoints.length - outOf(pool), names: pool.endpoints.map((row) => row[0]).join(),
  }]));
  trend.push({ at, pools });
  while (trend[0].at < at - TREND_S - MINUTE_S) trend.shift();
  while (marks.length && marks[0].at < at - TREND_S) marks.shift();
  for (const [name, now] of Object.entries(pools)) {
    const was = last && last.pools[name];
    if (!was) continue;
    if (now.strategy !== was.strategy) marks.push({ at, name, text: `strategy ${was.strategy} → ${now.strategy}` });
    if (now.usable !== was.usable) marks.push({ at, name, text: `endpoints in use ${was.usable} → ${now.usable}` });
    else if (now.names !== was.names) marks.push({ at, name, text: "other endpoints" });
  }
}

// What a pool's point tells, or all pools' together: shares are weighed by picks, seconds added up.
function figure(point, pool, field) {
  const told = Object.entries(point.pools).filter(([name, one]) => (!pool || name === pool) && known(one[field])).map(([, one]) => one);
  if (!told.length) return null;
  if (field === "saved") return sum(told.map((one) => one.saved));
  const weights = told.map((one) => Math.max(1, one.picks));
  return sum(told.map((one, at) => one[field] * weights[at])) / sum(weights);
}

// Seconds of prefill saved in the minute before each point; none where counting began anew.
function savedPerMinute(points, pool) {
  const totals = points.map((point) => figure(point, pool, "saved"));
  let first = 0, began = 0;
  return points.map((point, at) => {
    if (!known(totals[at]) || (at && totals[at] < totals[at - 1]) || (at && !known(totals[at - 1]))) began = at;
    while (points[first].at < point.at - MINUTE_S) first += 1;
    const from = Math.max(first, began), span = point.at - points[from].at;
    return known(totals[at]) && span >= 5 ? MINUTE_S * (totals[at] - totals[from]) / span : null;
  });
}

function latest(pool, field) {
  if (field !== "saved") return trend.length ? figure(trend.at(-1), pool, field) : null;
  const values = savedPerMinute(trend.filter((point) => point.at >= trend.at(-1).at - 2 * MINUTE_S), pool);
  return values.length ? values.at(-1) : null;
}

// What two pictures of the same requests say, for each pool with a shadow.
function drawForecast(pool) {
  const told = picture.pools.filter((one) => (!pool || one.name === pool) && one.forecast);
  byId("forecast").hidden = !told.length;
  each(byId("forecast"), told, () => element("p"), (line, { name, forecast }) => {
    const whose = picture.pools.length > 1 ? `Pool ${name}. ` : "", measured = forecast.measured_hit_rate;
    const beside = known(measured) ? ` The engines measured ${percent(measured)}.` : "";
    put(line, `${whose}${forecast.sentence}${beside} Watched for ${lasting(forecast.watched_s)}.`);
  });
}

// Where prompts part that begin alike, for each pool with `lint`.
function drawLint(pool) {
  const told = picture.pools.filter((one) => (!pool || one.name === pool) && one.lint);
  const lines = told.flatMap(({ name, lint }) => lint.map((line) => (picture.pools.length > 1 ? `Pool ${name}: ${line}` : `Prompts: ${line}`)));
  byId("lint").hidden = !lines.length;
  each(byId("lint"), lines, () => element("p"), put);
}

function drawPays() {
  const pool = byId("which").value, end = trend.at(-1).at;
  drawForecast(pool);
  drawLint(pool);
  const series = {
    found: trend.map((point) => figure(point, pool, "found")),
    predicted: trend.map((point) => figure(point, pool, "predicted")),
    saved: savedPerMinute(trend, pool),
  };
  const isKnown = Object.values(series).some((values) => values.some(known));
  byId("pays").hidden = !isKnown; byId("pays-not").hidden = isKnown;
  if (!isKnown) return;
  // As much as was seen, two minutes at least, so that a page just opened is not empty.
  const span = Math.min(TREND_S, Math.max(2 * MINUTE_S, end - trend[0].at));
  for (const from of document.querySelectorAll(".pays-from")) put(from, `${Math.round(span / 60)} minutes ago`);
  const x = (at) => 600 * (1 - (end - at) / span);
  const shown = marks.filter((one) => (!pool || one.name === pool) && one.at >= end - span).slice(-MARKS);
  const high = roundUp(Math.max(4, ...series.saved.filter(known)));
  curves(byId("hits"), [["hit-predicted", series.predicted, 1], ["hit-found", series.found, 1]], x, shown);
  curves(byId("saved"), [["hit-saved", series.saved, high]], x, shown);
  put(byId("saved-high"), `${count(high)} s`); put(byId("saved-half"), `${count(high / 2)} s`);
  const now = { found: percent(series.found.at(-1)), predicted: percent(series.predicted.at(-1)), saved: seconds(series.saved.at(-1)) };
  for (const [name, value] of Object.entries(now)) {
    put(byId(`now-${name}`), value === "–" ? "" : value);
    byId(`now-${name}`).parentElement.hidden = name === "predicted" && !series.predicted.some(known);
  }
  byId("hits").setAttribute("aria-label", `Of prompt tokens found in caches ${now.found}, predicted ${now.predicted}`);
  byId("saved").setAttribute("aria-label", `Prefill saved in the last minute: ${now.saved}`);
  byId("saved").closest(".halves > div").hidden = !series.saved.some(known);
  each(byId("marks"), shown, () => { const one = element("li"); one.append(element("b"), element("span")); return one; }, (one, { at, name, text }) => {
    put(one.children[0], `${age(end - at)} ago`);
    put(one.children[1], ` ${picture.pools.length > 1 ? `pool ${name}: ` : ""}${text}`);
  });
}

// A line for each of [class, values, the value at the top]; nothing where a value is not known; a stroke for each mark.
function curves(svg, wanted, x, shown) {
  const node = (tag, css) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    made.setAttribute("class", css);
    svg.append(made);
    return made;
  };
  if (!svg.children.length) {
    for (const y of [0.5, 50]) for (const [name, value] of Object.entries({ x1: 0, x2: 600, y1: y, y2: y })) {
      (svg.children[y < 1 ? 0 : 1] || node("line", "")).setAttribute(name, value);
    }
    wanted.forEach(([css]) => node("path", `curve ${css}`));
    node("path", "marked");
  }
  wanted.forEach(([, values, high], at) => {
    let path = "", isDown = false;
    values.forEach((value, i) => {
      const left = x(trend[i].at);
      if (!known(value) || left < 0) { isDown = false; return; }
      path += `${isDown ? "L" : "M"}${left.toFixed(1)} ${(100 - 99 * Math.min(1, value / high)).toFixed(2)}`;
      isDown = true;
    });
    svg.children[2 + at].setAttribute("d", path);
  });
  svg.lastElementChild.setAttribute("d", shown.map((one) => `M${x(one.at).toFixed(1)} 0V100`).join(""));
}

// ---- pools

const HEADS = [
  ["Endpoint", ""], ["State", ""], ["In flight", "n"], ["Share of picks", "n"], ["First token", "n"],
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
  put(head.children[0], `pool ${pool.name}`); put(head.children[1], pool.strategy);
  card.firstElementChild.setAttribute("aria-label", `Endpoints of ${pool.name}`);
  const states = Object.entries(pool.states).map(([state, many]) => `${count(many)} ${state}`).join(", ");
  // What the tiles say of a single pool is not said again.
  const isAlone = picture.pools.length === 1;
  const told = [
    ...(isAlone && states === `${pool.endpoints.length} ready` ? [] : [[states || "no endpoints", ""]]),
    ...(isAlone ? [] : [[count(pool.in_flight), " in flight"]]),
    ...(known(pool.balance) ? [[pool.balance.toFixed(1), " × as many on the busiest endpoint as on average"]] : []),
    ...(known(pool.bound) ? [[`at most ${count(pool.bound)}`, " in flight on an endpoint"]] : []),
    ...(known(pool.max_in_flight) ? [[`full at ${count(pool.max_in_flight)}`, " in flight for each endpoint"]] : []),
    ...(known(pool.bound) || known(pool.max_in_flight) || !pool.endpoints.length ? [] : [["no limit", " on the requests of an endpoint"]]),
    ...(!isAlone && known(pool.predicted) ? [[percent(pool.predicted), " of prompts predicted to be cached"]] : []),
    ...(!isAlone && known(pool.found) ? [[percent(pool.found), " of tokens found in caches"]] : []),
    ...(!isAlone && known(pool.first_token_s) ? [[seconds(pool.first_token_s), " to the first token"]] : []),
    ...(known(pool.age_s) ? [[age(pool.age_s), " since its list of endpoints was confirmed"]] : [["no list", " of endpoints yet"]]),
    ...(pool.fault ? [[pool.fault, ""]] : []),
  ];
  each(facts, told, () => { const one = element("span"); one.append(element("b"), element("span")); return one; },
    (one, [value, words]) => { put(one.children[0], value); put(one.children[1], words); });
  const [table, none, more] = card.children, rows = chosen(pool);
  table.hidden = !pool.endpoints.length; none.hidden = !table.hidden;
  const most = Math.max(1, ...pool.endpoints.map((row) => row[3]));
  const share = Math.max(0.01, ...pool.endpoints.map((row) => row[4] || 0));
  each(table.tBodies[0], rows, makeRow, (tr, row) => drawRow(tr, row, pool, most, share));
  // A column that nothing is known for is not shown.
  for (const column of [4, 5, 6]) {
    const isEmpty = !pool.endpoints.some((row) => known(row[column + 2]));
    for (const tr of table.rows) if (tr.children[column].hidden !== isEmpty) tr.children[column].hidden = isEmpty;
  }
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
  const [name, address, state, inFlight, part, left, firstToken, predicted, found, zone, , events] = row;
  const [th, ...cells] = tr.children, bound = known(pool.bound) ? pool.bound : pool.max_in_flight;
  put(th.children[0], name);
  put(th.children[1], [name === address ? "" : address, zone, events && `KV events ${events}`].filter(Boolean).join(" · "));
  const shown = cells[0].firstElementChild;
  mark(shown, "state", state);
  put(shown, left ? `${state}, ${Math.ceil(left)} s` : state === "cooling" ? "on trial" : state);
  gauge(cells[1], inFlight / (bound || most), known(bound) ? `${inFlight} / ${bound}` : `${inFlight}`);
  cells[1].firstElementChild.classList.toggle("full", known(bound) && inFlight >= bound);
  gauge(cells[2], (part || 0) / share, percent(part));
  put(cells[3].firstElementChild, seconds(firstToken));
  // Of one that gets nothing the figures are of the past: no bar beside those of now.
  const isOut = OUT.includes(state);
  gauge(cells[4], isOut ? 0 : predicted, percent(predicted));
  gauge(cells[5], isOut ? 0 : found, percent(found));
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
  const isEmpty = !told.some((one) => one[5]);
  for (const tr of byId("decisions").parentElement.rows) if (tr.children[3].hidden !== isEmpty) tr.children[3].hidden = isEmpty;
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

// A body to begin with, with a model of the first pool that names one; what was typed stays.
let example = "";
function showExample(model) {
  const text = JSON.stringify({ model, messages: [{ role: "user", content: "Tell me about prefix caches." }] }, null, 2);
  if (byId("body").value === example) byId("body").value = text;
  example = text;
}

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
  const { endpoint, address, reason, pool, strategy, body_fault: fault, ...rest } = found;
  const why = (REASONS[reason] || ["", reason])[1];
  const grounds = fault ? `the body cannot be read: ${fault}` : why;
  const nodes = [element("h3", fault ? "bad" : "", `${endpoint} would get it: ${grounds}`)];
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
  drawTiles(); drawChart(); drawPools(); drawPays(); drawDecisions(); drawConfiguration();
}

function open() {
  if (source || document.hidden) return;
  source = new EventSource("live");
  source.addEventListener("history", (event) => { history.length = 0; history.push(...JSON.parse(event.data)); });
  source.addEventListener("message", (event) => {
    const told = JSON.parse(event.data);
    history.push(told.reasons);
    history.splice(0, history.length - HISTORY - 1);
    remember(told);
    const model = told.pools.map((pool) => pool.model).find(known);
    if (!picture && model) showExample(model);
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
  put(byId("pause"), paused ? "Resume" : "Pause");
  if (picture) draw();
});
byId("which").addEventListener("change", () => { if (picture) { drawChart(); drawPays(); } });
byId("config").addEventListener("toggle", () => picture && drawConfiguration());
byId("explain").addEventListener("submit", explain);
showExample("your-model");
open();
