// The overview: how far each run is, and curves of its metrics.
import { armNode, armsOf, labels, runLabel, shownRuns } from "./arms.js";
import { rowsOf } from "./metric_rows.js";
import { at, drawProblems, fillSelect, go, state, view } from "./state.js";

const { make, show } = tokenView;
const USUAL = ["reward", "explained_variance", "rho", "tokens_per_second", "staleness_mean"];
const MOST_CURVES = 24;

export function drawOverview() {
  const { overview } = state;
  if (!overview) return;
  drawHead(overview);
  drawProblems();
  const arms = labels(), runs = shownRuns();
  at("legend").hidden = arms.length < 2 || view() === "one";
  at("legend").replaceChildren(...arms.map(armNode));
  if (view() !== "overview") return;
  at("runs-box").hidden = !runs.length;
  at("runs").tBodies[0].replaceChildren(...runs.map(runRow));
  fillSelect(at("collection"), [["", "all"], ...Object.entries(overview.collections)], state.selected.get("of") || "");
  at("collection-label").hidden = Object.keys(overview.collections).length < 2;
  drawMetricChoice();
  drawCurves();
}

function drawHead(overview) {
  at("kicker").textContent = "lecritique view";
  at("title").textContent = overview.title;
  document.title = `${overview.title} · lecritique`;
  at("footer").textContent = `lecritique ${overview.version} · ${overview.directory}`;
  at("lede").textContent = overview.runs.length ? progress(overview)
    : overview.pending ? `${overview.pending} runs are to come; none has begun.` : "No run can be read.";
}

function progress({ runs, pending }) {
  const going = runs.filter((run) => run.state === "running").length;
  const newest = Math.max(-1, ...runs.map((run) => run.newest ?? -1));
  const planned = Math.max(0, ...runs.map((run) => run.planned || 0));
  const step = newest < 0 ? "no step recorded yet." : `newest step ${newest + 1}${planned ? ` of ${planned}` : ""}.`;
  return `${runs.length} ${runs.length === 1 ? "run" : "runs"}, ${going} running${pending ? `, ${pending} to come` : ""}; ${step}`;
}

function runRow(run) {
  const row = make("tr"), arm = make("td"), how = make("td");
  const mark = make("span", undefined, `state ${run.state.replace(/\W/g, "")}`);
  arm.append(armNode(runLabel(run)));
  mark.append(make("i"), make("span", run.state + (run.resumes ? `, resumed ${run.resumes}×` : "")));
  how.append(mark);
  if (run.message) how.title = run.message;
  const steps = run.newest === null ? "–" : `${run.newest + 1}${run.planned ? ` / ${run.planned}` : ""}`;
  row.append(arm, make("td", run.seed, "num"), how, make("td", steps, "num"),
    make("td", show(run.latest.reward), "num"), make("td", show(run.latest.explained_variance), "num"),
    make("td", run.updated ? ago(run.updated) : "–"));
  return row;
}

function ago(iso) {
  const seconds = (Date.now() - Date.parse(iso)) / 1000;
  if (!Number.isFinite(seconds)) return "–";
  for (const [unit, size] of [["day", 86400], ["h", 3600], ["min", 60]])
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}${unit === "day" && seconds >= 2 * size ? "s" : ""} ago`;
  return seconds < 5 ? "now" : `${Math.floor(seconds)} s ago`;
}

// ---- curves

export function shownMetrics() {
  const known = new Set(state.overview.metrics.map((metric) => metric.name));
  const wanted = state.selected.has("curves") ? state.selected.get("curves").split(",") : USUAL;
  return wanted.filter((name) => known.has(name)).slice(0, MOST_CURVES);
}

function drawMetricChoice() {
  const select = at("add-metric"), shown = shownMetrics(), { metrics } = state.overview;
  const wanted = JSON.stringify([shown, metrics.length]);
  if (select.dataset.holds === wanted || select === document.activeElement) return;
  select.dataset.holds = wanted;
  const roles = [...new Set(metrics.map((metric) => metric.role))];
  select.replaceChildren(new Option("add one of …", ""), ...roles.map((role) => {
    const group = make("optgroup");
    group.label = role;
    group.append(...metrics.filter((metric) => metric.role === role && !shown.includes(metric.name))
      .map((metric) => new Option(metric.name.replaceAll("_", " "), metric.name)));
    return group;
  }));
}

const panels = new Map();   // figures by metric, with what they were drawn from
export function drawCurves() {
  const shown = shownMetrics();
  at("no-curves").hidden = state.overview.metrics.length > 0;
  for (const [name, panel] of panels) if (!shown.includes(name)) { panel.box.remove(); panels.delete(name); }
  shown.forEach((name, place) => {
    if (!panels.has(name)) panels.set(name, { box: make("figure"), drawn: "" });
    const panel = panels.get(name), there = at("curves").children[place] || null;
    if (there !== panel.box) at("curves").insertBefore(panel.box, there);
    drawCurve(name, panel);
  });
}

function drawCurve(name, panel) {
  const runs = shownRuns().filter((run) => rowsOf(run)?.columns[name]);
  const drawn = JSON.stringify([panel.box.clientWidth, ...runs.map((run) => [run.key, rowsOf(run).version])]);
  if (panel.drawn === drawn) return;
  panel.drawn = drawn;
  const spec = state.overview.metrics.find((metric) => metric.name === name);
  const arms = armsOf(runs).map((arm) => ({
    ...arm,
    runs: arm.runs.map((run) => ({ seed: run.seed, steps: rowsOf(run).steps, values: rowsOf(run).columns[name] })),
  }));
  const close = () => go({ curves: shownMetrics().filter((other) => other !== name).join(",") || "none" });
  curveView.draw(panel.box, spec, arms, close);
}

// look: asks the server for what the new curve needs.
export function listenToOverview(look) {
  at("add-metric").addEventListener("change", (event) => {
    const name = event.target.value;
    event.target.blur();
    if (name) { go({ curves: [...shownMetrics(), name].join(",") }); look(); }
  });
  at("collection").addEventListener("change", (event) => { event.target.blur(); go({ of: event.target.value }); });
  addEventListener("resize", () => { if (state.overview && view() === "overview") drawCurves(); });
}
