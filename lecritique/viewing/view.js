"use strict";
// The live page. What is selected stands in the address after '#', so that a link leads back to it.
(() => {
  const { COLOURS, make, shape, show, available, buttons, pairs, facts, trace, scaleBar, text, pointing } = tokenView;
  const at = (id) => document.getElementById(id);
  const LOOK_AGAIN_MS = 1500, PAGE_SIZE = 25, ARM_COLOURS = 7;
  // Of the second round of colours and later ones, as in the report.
  const DASHES = ["none", "6 2.5", "2.5 2.5", "9 2.5 2.5 2.5"];
  const USUAL = ["reward", "explained_variance", "rho", "tokens_per_second", "staleness_mean"];
  const FILTERS = ["text", "run", "status", "least_reward", "most_reward", "least_step", "most_step", "order"];

  let selected = new URLSearchParams();   // what the address says
  let overview = null;                    // the newest answer of /api/overview
  const store = new Map();                // rows by run: {generation, steps, columns}, of the metrics in `stored`
  let stored = "", versions = 0;
  let listed = null, listedFor = "";      // the page of trajectories that is shown, and what it was asked for
  let opened = null;                      // the trajectory that is shown
  let colour = null;

  async function ask(path, query) {
    const response = await fetch(`/api/${path}?${query || ""}`);
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
    return answer;
  }

  // ---- the address

  const hash = (changes) => {
    const next = new URLSearchParams(selected);
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") next.delete(key);
      else next.set(key, value);
    }
    return "#" + next;
  };
  const view = () => (["list", "one"].includes(selected.get("view")) ? selected.get("view") : "overview");
  function go(changes, { push = false } = {}) {
    const next = hash(changes);
    if (push) { location.hash = next; return; }
    history.replaceState(null, "", next);
    readAddress();
  }
  function readAddress() {
    selected = new URLSearchParams(location.hash.slice(1));
    for (const name of ["overview", "list", "one"]) at(name).hidden = view() !== name;
    at("tab-overview").href = hash({ view: "overview" });
    at("tab-list").href = hash({ view: "list" });
    for (const [tab, here] of [["tab-overview", view() === "overview"], ["tab-list", view() !== "overview"]]) {
      if (here) at(tab).setAttribute("aria-current", "page");
      else at(tab).removeAttribute("aria-current");
    }
    drawOverview();
    if (view() === "list") showList();
    if (view() === "one") showOne();
  }

  // ---- runs and their colours

  const runLabel = (run) => (Object.keys(overview.collections).length > 1 && run.collection !== run.key
    ? `${overview.collections[run.collection] || run.collection} · ${run.arm}` : Object.keys(overview.collections).length > 1
      ? overview.collections[run.collection] || run.key : run.arm);
  function lookOf(label) {
    const place = [...new Set(overview.runs.map(runLabel))].indexOf(label), round = Math.floor(place / ARM_COLOURS);
    return { colour: `--arm-${place % ARM_COLOURS}`, dash: DASHES[round % DASHES.length] };
  }
  const armsOf = (runs) => [...new Set(runs.map(runLabel))].map((label) => ({
    label, ...lookOf(label), runs: runs.filter((run) => runLabel(run) === label),
  }));
  function armNode(label) {
    const node = make("span", undefined, "arm"), { colour: of, dash } = lookOf(label);
    const swatch = dash === "none" ? make("i") : shape("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" });
    if (dash !== "none") swatch.append(shape("path", { d: "M1 5H25", "stroke-dasharray": dash }));
    swatch.style.setProperty("--c", `var(${of})`);
    node.append(swatch, make("span", label));
    return node;
  }
  const shownRuns = () => overview.runs.filter((run) => !selected.get("of") || run.collection === selected.get("of"));

  // ---- overview

  function ago(iso) {
    const seconds = (Date.now() - Date.parse(iso)) / 1000;
    if (!Number.isFinite(seconds)) return "–";
    for (const [unit, size] of [["day", 86400], ["h", 3600], ["min", 60]])
      if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}${unit === "day" && seconds >= 2 * size ? "s" : ""} ago`;
    return seconds < 5 ? "now" : `${Math.floor(seconds)} s ago`;
  }

  function drawOverview() {
    if (!overview) return;
    at("kicker").textContent = "lecritique view";
    at("title").textContent = overview.title;
    document.title = `${overview.title} · lecritique`;
    at("footer").textContent = `lecritique ${overview.version} · ${overview.directory}`;
    drawProblems();
    const runs = shownRuns(), going = overview.runs.filter((run) => run.state === "running").length;
    const newest = Math.max(-1, ...overview.runs.map((run) => (run.newest === null ? -1 : run.newest)));
    const planned = Math.max(0, ...overview.runs.map((run) => run.planned || 0));
    at("lede").textContent = !overview.runs.length
      ? overview.pending ? `${overview.pending} runs are to come; none has begun.` : "No run can be read."
      : `${overview.runs.length} ${overview.runs.length === 1 ? "run" : "runs"}, ${going} running`
        + (overview.pending ? `, ${overview.pending} to come` : "") + "; "
        + (newest < 0 ? "no step recorded yet." : `newest step ${newest + 1}${planned ? ` of ${planned}` : ""}.`);
    const labels = [...new Set(overview.runs.map(runLabel))];
    at("legend").hidden = labels.length < 2 || view() === "one";
    at("legend").replaceChildren(...labels.map(armNode));
    if (view() !== "overview") return;
    at("runs-box").hidden = !runs.length;
    at("runs").tBodies[0].replaceChildren(...runs.map(runRow));
    fillSelect(at("collection"), [["", "all"], ...Object.entries(overview.collections)], selected.get("of") || "");
    at("collection-label").hidden = Object.keys(overview.collections).length < 2;
    drawMetricChoice();
    drawCurves();
  }

  function drawProblems(extra) {
    const problems = [...new Set([...(overview ? overview.problems : []), ...(listed && view() !== "overview" ? listed.problems : []), ...(extra ? [extra] : [])])];
    at("problems").hidden = !problems.length;
    at("problems").replaceChildren(...problems.map((problem) => make("li", problem)));
  }

  function runRow(run) {
    const row = make("tr"), arm = make("td"), state = make("td"), mark = make("span", undefined, `state ${run.state.replace(/\W/g, "")}`);
    arm.append(armNode(runLabel(run)));
    mark.append(make("i"), make("span", run.state + (run.resumes ? `, resumed ${run.resumes}×` : "")));
    state.append(mark);
    if (run.message) state.title = run.message;
    const steps = run.newest === null ? "–" : `${run.newest + 1}${run.planned ? ` / ${run.planned}` : ""}`;
    row.append(arm, make("td", run.seed, "num"), state, make("td", steps, "num"),
      make("td", show(run.latest.reward), "num"), make("td", show(run.latest.explained_variance), "num"),
      make("td", run.updated ? ago(run.updated) : "–"));
    return row;
  }

  function fillSelect(select, options, chosen) {
    const wanted = JSON.stringify([options, chosen]);
    if (select.dataset.holds === wanted || (select === document.activeElement && select.options.length)) return;
    select.dataset.holds = wanted;
    select.replaceChildren(...options.map(([value, label]) => new Option(label, value)));
    select.value = chosen;
  }

  function shownMetrics() {
    const known = new Set(overview.metrics.map((metric) => metric.name));
    if (selected.has("curves")) return selected.get("curves").split(",").filter((name) => known.has(name)).slice(0, 24);
    return USUAL.filter((name) => known.has(name));
  }
  function drawMetricChoice() {
    const select = at("add-metric"), shown = shownMetrics(), roles = [...new Set(overview.metrics.map((m) => m.role))];
    const wanted = JSON.stringify([shown, overview.metrics.length]);
    if (select.dataset.holds === wanted || select === document.activeElement) return;
    select.dataset.holds = wanted;
    select.replaceChildren(new Option("add one of …", ""), ...roles.map((role) => {
      const group = make("optgroup");
      group.label = role;
      group.append(...overview.metrics.filter((m) => m.role === role && !shown.includes(m.name))
        .map((m) => new Option(m.name.replaceAll("_", " "), m.name)));
      return group;
    }));
  }
  at("add-metric").addEventListener("change", (event) => {
    const name = event.target.value;
    event.target.blur();
    if (name) { go({ curves: [...shownMetrics(), name].join(",") }); look(); }
  });
  at("collection").addEventListener("change", (event) => { event.target.blur(); go({ of: event.target.value }); });

  const panels = new Map();   // figures by metric, with what they were drawn from
  function drawCurves() {
    const shown = shownMetrics();
    at("no-curves").hidden = overview.metrics.length > 0;
    for (const name of panels.keys()) if (!shown.includes(name)) { panels.get(name).box.remove(); panels.delete(name); }
    for (const name of shown) {
      if (!panels.has(name)) panels.set(name, { box: make("figure"), drawn: "" });
      const panel = panels.get(name), runs = shownRuns().filter((run) => store.get(run.key)?.columns[name]);
      if (at("curves").children[shown.indexOf(name)] !== panel.box) at("curves").insertBefore(panel.box, at("curves").children[shown.indexOf(name)] || null);
      const drawn = JSON.stringify([panel.box.clientWidth, ...runs.map((run) => [run.key, store.get(run.key).version])]);
      if (panel.drawn === drawn) continue;
      panel.drawn = drawn;
      const spec = overview.metrics.find((metric) => metric.name === name);
      const arms = armsOf(runs).map((arm) => ({ ...arm, runs: arm.runs.map((run) => ({
        seed: run.seed, steps: store.get(run.key).steps, values: store.get(run.key).columns[name] })) }));
      curveView.draw(panel.box, spec, arms, () => go({ curves: shownMetrics().filter((other) => other !== name).join(",") || "none" }));
    }
  }

  // Fetches the rows of a run that are not here yet; what a resumed run does again replaces what was here.
  async function readOn(run, names) {
    const held = store.get(run.key) || { generation: -1, version: 0, steps: [], columns: Object.fromEntries(names.map((n) => [n, []])) };
    if (store.has(run.key) && held.generation === run.generation && held.steps[held.steps.length - 1] === run.newest) return;
    for (let more = true; more;) {
      const query = new URLSearchParams({ run: run.key, generation: held.generation, after: held.steps.length ? held.steps[held.steps.length - 1] : -1 });
      names.forEach((name) => query.append("metric", name));
      const answer = await ask("rows", query);
      if (stored !== names.join()) return;
      if (answer.drop_from !== null) {
        const keep = held.steps.filter((step) => step < answer.drop_from).length;
        held.steps.length = keep;
        for (const name of names) held.columns[name].length = keep;
      }
      held.generation = answer.generation;
      held.steps.push(...answer.steps);
      for (const name of names) held.columns[name].push(...answer.columns[name]);
      if (answer.steps.length || answer.drop_from !== null) held.version = ++versions;
      more = answer.more;
    }
    store.set(run.key, held);
  }

  // ---- the list of trajectories

  const listQuery = (page) => {
    const query = new URLSearchParams();
    for (const name of FILTERS) if (selected.get(name)) query.set(name, selected.get(name));
    if (selected.get("of")) query.set("collection", selected.get("of"));
    query.set("size", PAGE_SIZE);
    query.set("page", page);
    return query.toString();
  };
  const pageNumber = () => Math.max(0, Number.parseInt(selected.get("page") || "0", 10) || 0);

  async function fetchList(page) {
    const query = listQuery(page);
    if (listed && listedFor === query && !listed.stale) return listed;
    for (;;) {
      const answer = await ask("trajectories", query);
      if (query !== listQuery(page)) return null;   // the filter has changed meanwhile
      if (answer.unread) {
        at("count").textContent = `Reading saved rollouts: ${answer.unread} files to go …`;
        continue;
      }
      listed = { ...answer, files: rolloutFiles() };
      listedFor = query;
      return answer;
    }
  }
  const rolloutFiles = () => (overview ? overview.runs.reduce((sum, run) => sum + run.rollout_files, 0) : 0);

  async function showList() {
    drawFilters();
    try {
      if (!listed || listedFor !== listQuery(pageNumber())) at("count").textContent = "Reading …";
      if (await fetchList(pageNumber())) drawList();
    } catch (error) {
      at("rows").replaceChildren();
      at("pager").replaceChildren();
      at("count").textContent = error.message;
    }
  }

  function drawFilters() {
    for (const name of FILTERS.filter((each) => each !== "run" && each !== "status")) {
      const field = at(`f-${name}`), value = selected.get(name) || (name === "order" ? "advantage" : "");
      if (field !== document.activeElement) field.value = value;
    }
    if (!overview) return;
    const runs = overview.runs.map((run) => [run.key, `${runLabel(run)} · seed ${run.seed}`]);
    fillSelect(at("f-run"), [["", "all"], ...runs], selected.get("run") || "");
    const statuses = new Set([...(listed ? listed.statuses : []), ...(selected.get("status") ? [selected.get("status")] : [])]);
    fillSelect(at("f-status"), [["", "all"], ...[...statuses].sort().map((status) => [status, status])], selected.get("status") || "");
  }

  let typing = 0;
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  at("filters").addEventListener("input", (event) => {
    clearTimeout(typing);
    const name = event.target.id.slice(2), value = event.target.value;
    typing = setTimeout(() => go({ [name]: name === "order" && value === "advantage" ? "" : value, page: "" }), event.target.tagName === "SELECT" ? 0 : 250);
  });
  at("f-clear").addEventListener("click", () => go(Object.fromEntries([...FILTERS, "page"].map((name) => [name, ""]))));
  at("fresh").addEventListener("click", () => { listed.stale = true; showList(); });

  const linkTo = (row, extra) => hash({ view: "one", at_run: row.run, at_step: row.step, at_row: row.index, ...extra });

  function drawList() {
    drawFilters();
    drawProblems();
    at("fresh").hidden = true;
    const pages = Math.max(1, Math.ceil(listed.total / PAGE_SIZE)), page = pageNumber();
    at("count").textContent = listed.saved || listed.total
      ? listed.total ? `${listed.total.toLocaleString("en")} of ${listed.saved.toLocaleString("en")} saved rollouts` : `None of ${listed.saved.toLocaleString("en")} saved rollouts passes the filter.`
      : selected.get("run") ? "This run has saved no rollouts yet." : "No rollouts have been saved yet; runs save some every 'run.save_rollouts_every' steps, and this page looks again by itself.";
    at("rows").replaceChildren(...listed.rows.map((row) => {
      const item = make("li"), link = make("a"), left = make("div"), middle = make("div"), right = make("div", undefined, "right"), meta = make("div", undefined, "meta");
      link.href = linkTo(row, {});
      left.append(make("span", show(row.reward, 2), "big"), make("small", "reward"));
      const run = overview && overview.runs.find((each) => each.key === row.run);
      meta.append(run ? armNode(runLabel(run)) : make("span", row.arm), ...[`seed ${row.seed}`, `step ${row.step}`, `rollout ${row.id}`, row.status, `${row.tokens} tokens`].map((part) => make("span", part)));
      middle.append(make("div", row.prompt || row.task || "–", "task"), meta);
      right.append(make("span", show(row.advantage)), make("small", "|advantage|"));
      if (row.gap !== null) right.append(make("span", show(row.gap, 2)), make("small", "teacher gap"));
      link.title = row.task;
      link.append(left, middle, right);
      item.append(link);
      return item;
    }));
    const turn = (label, to) => {
      const button = make("button", label);
      button.type = "button";
      button.disabled = to < 0 || to >= pages;
      button.addEventListener("click", () => { go({ page: to || "" }, { push: true }); at("list").scrollIntoView(); });
      return button;
    };
    at("pager").replaceChildren(...(pages > 1 ? [turn("‹ earlier", page - 1), make("span", `page ${page + 1} of ${pages.toLocaleString("en")}`), turn("later ›", page + 1)] : []));
  }

  // ---- one trajectory

  const isShown = (row) => row.run === selected.get("at_run") && String(row.step) === selected.get("at_step") && String(row.index) === selected.get("at_row");

  async function showOne() {
    const query = new URLSearchParams({ run: selected.get("at_run") || "", step: selected.get("at_step") || "", row: selected.get("at_row") || "" });
    const wanted = query.toString();
    try {
      if (!opened || opened.query !== wanted) {
        const answer = await ask("trajectory", query);
        if (view() !== "one" || selected.get("at_run") !== query.get("run") || selected.get("at_step") !== query.get("step") || selected.get("at_row") !== query.get("row")) return;
        opened = { ...answer, query: wanted };
      }
      at("one-problem").hidden = true;
      at("one-panel").hidden = false;
      drawOne();
    } catch (error) {
      opened = null;
      at("one-problem").hidden = false;
      at("one-problem").textContent = error.message;
      at("one-panel").hidden = true;
    }
    drawStepsThrough();
    try {
      if (await fetchList(pageNumber())) drawStepsThrough();
    } catch { /* the trajectory stands by itself */ }
  }

  function drawOne() {
    const { sample, siblings, scale } = opened;
    if (!colour || !sample[colour]) colour = available(sample).includes("advantage") && !sample.value ? "advantage" : available(sample)[0] || null;
    const keys = Object.keys(COLOURS).filter((key) => sample[key] || !["modulated", "gap"].includes(key));
    buttons(at("token-colour"), keys.map((key) => [key, COLOURS[key].label, !sample[key]]), colour, (key) => { colour = key; drawOne(); });
    pairs(at("token-facts"), [["arm", sample.arm], ...facts(sample)]);
    trace(at("token-trace"), sample, colour, scale);
    scaleBar(at("token-scale"), colour, scale);
    const told = [["the task, as it was asked", opened.prompt], ["what only the critic saw", sample.context]].filter(([, words]) => words);
    at("told").replaceChildren(...told.map(([title, words]) => {
      const box = make("div");
      box.append(make("h4", title), make("pre", words, "wrapped"));
      return box;
    }));
    text(at("token-text"), { ...sample, context: null }, colour, scale);
    if (!sample.text.length) at("token-text").replaceChildren(make("p", `This rollout has no tokens: it ended as '${sample.status}'.`, "empty"));
    at("group-title").textContent = siblings.length > 1
      ? `Its group: ${opened.members} ${opened.members > siblings.length ? `members, ${siblings.length} shown` : "members"}` : "It is alone in its group";
    at("siblings").replaceChildren(...siblings.map(siblingCard));
    point(null);
    pointSibling(null);
  }

  function siblingCard(sibling) {
    const box = make("div", undefined, sibling.own ? "sibling own" : "sibling"), head = make("div", undefined, "head");
    const name = make("a", `rollout ${sibling.id}${sibling.segment ? `, segment ${sibling.segment}` : ""}`);
    name.href = hash({ at_row: sibling.index });
    const right = make("span", sibling.own ? "this one" : sibling.status), body = make("div");
    head.append(name, right);
    const value = make("div", undefined, "head");
    value.append(make("b", show(sibling.reward)), make("span", "return"));
    box.dataset.i = opened.siblings.indexOf(sibling);
    text(body, sibling, colour, opened.scale, { bare: true });
    if (!sibling.text.length) body.append(make("p", `no tokens: ${sibling.status}`, "empty"));
    box.append(head, value, body);
    if (sibling.context && sibling.context !== opened.sample.context) {
      const seen = make("details");
      seen.append(make("summary", "what only the critic saw"), make("pre", sibling.context, "wrapped"));
      box.append(seen);
    }
    return box;
  }
  const point = pointing(at("token-text"), at("token-tip"), () => opened.sample, (i) => (at("token-trace").place || (() => {}))(i));
  const pointSibling = pointing(at("siblings"), at("token-tip"), (node) => opened.siblings[Number(node.closest(".sibling").dataset.i)], () => {});

  // The trajectories before and after, in the order of the list; they may stand on another of its pages.
  function neighbour(offset) {
    const here = listed && listedFor === listQuery(pageNumber()) ? listed.rows.findIndex(isShown) : -1;
    if (here < 0) return null;
    const place = pageNumber() * PAGE_SIZE + here + offset;
    return place < 0 || place >= listed.total ? null : { place, row: listed.rows[here + offset] };
  }
  async function step(offset) {
    const next = neighbour(offset);
    if (!next) return;
    let { row } = next;
    const page = Math.floor(next.place / PAGE_SIZE);
    if (!row) {
      const answer = await ask("trajectories", listQuery(page));
      row = answer.rows[next.place - page * PAGE_SIZE];
      if (!row) return;
    }
    history.replaceState(null, "", linkTo(row, { page: page || "" }));
    readAddress();
  }
  function drawStepsThrough() {
    const back = make("a", "‹ all trajectories");
    back.href = hash({ view: "list", at_run: "", at_step: "", at_row: "" });
    const go = (label, offset) => {
      const button = make("button", label);
      button.type = "button";
      button.disabled = !neighbour(offset);
      button.addEventListener("click", () => step(offset));
      return button;
    };
    const here = neighbour(0);
    at("steps-through").replaceChildren(back, go("← previous", -1), go("next →", 1),
      ...(here ? [make("span", `${(here.place + 1).toLocaleString("en")} of ${listed.total.toLocaleString("en")}`)] : []));
  }
  addEventListener("keydown", (event) => {
    if (view() !== "one" || event.altKey || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") { event.preventDefault(); step(event.key === "ArrowLeft" ? -1 : 1); }
    if (event.key === "Escape") location.hash = hash({ view: "list", at_run: "", at_step: "", at_row: "" });
  });

  // ---- looking again

  let looking = false;
  async function look() {
    if (looking) return;
    looking = true;
    try {
      overview = await ask("overview");
      const names = shownMetrics();
      if (names.join() !== stored) { store.clear(); stored = names.join(); }
      for (const key of store.keys()) if (!overview.runs.some((run) => run.key === key)) store.delete(key);
      drawOverview();
      if (view() === "overview" && names.length) {
        for (const run of shownRuns()) if (run.newest !== null) await readOn(run, names);
        drawOverview();
      }
      if (view() === "list") {
        drawFilters();
        if (listed && rolloutFiles() !== listed.files) {
          if (listed.rows.length) at("fresh").hidden = false;
          else { listed.stale = true; showList(); }
        }
      }
    } catch (error) {
      drawProblems(`The page could not be brought up to date: ${error.message}.`);
    } finally {
      looking = false;
    }
  }
  addEventListener("resize", () => { if (overview && view() === "overview") drawCurves(); });
  addEventListener("hashchange", () => { readAddress(); look(); });
  readAddress();
  look();
  setInterval(() => { if (!document.hidden) look(); }, LOOK_AGAIN_MS);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
})();
