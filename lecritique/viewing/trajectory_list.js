// The list of saved trajectories: filters, a page of them, and the way to the next page.
import { armNode, runLabel } from "./arms.js";
import { FILTERS, ask, at, drawProblems, fillSelect, go, hash, state } from "./state.js";

const { make, show } = tokenView;
const TYPING_MS = 250;
export const PAGE_SIZE = 25;

export const pageNumber = () => Math.max(0, Number.parseInt(state.selected.get("page") || "0", 10) || 0);

export function listQuery(page) {
  const { selected } = state, query = new URLSearchParams();
  for (const name of FILTERS) if (selected.get(name)) query.set(name, selected.get(name));
  if (selected.get("of")) query.set("collection", selected.get("of"));
  query.set("size", PAGE_SIZE);
  query.set("page", page);
  return query.toString();
}

export const listIsOf = (page) => state.listed !== null && state.listedFor === listQuery(page);
export const linkTo = (row, extra) =>
  hash({ view: "one", at_run: row.run, at_step: row.step, at_row: row.index, ...extra });

// A page of the list; null when the filter has changed meanwhile.
export async function fetchList(page) {
  const query = listQuery(page);
  if (listIsOf(page) && !state.listed.stale) return state.listed;
  for (;;) {
    const answer = await ask("trajectories", query);
    if (query !== listQuery(page)) return null;
    if (answer.unread) {
      at("count").textContent = `Reading saved rollouts: ${answer.unread} files to go …`;
      continue;
    }
    state.listed = { ...answer, files: rolloutFiles() };
    state.listedFor = query;
    return answer;
  }
}
const rolloutFiles = () => (state.overview ? state.overview.runs.reduce((sum, run) => sum + run.rollout_files, 0) : 0);

export async function showList() {
  drawFilters();
  try {
    if (!listIsOf(pageNumber())) at("count").textContent = "Reading …";
    if (await fetchList(pageNumber())) drawList();
  } catch (error) {
    at("rows").replaceChildren();
    at("pager").replaceChildren();
    at("count").textContent = error.message;
  }
}

// Rollouts that were saved meanwhile are offered, and shown by themselves only where there were none.
export function offerNewRollouts() {
  drawFilters();
  if (!state.listed || rolloutFiles() === state.listed.files) return;
  if (state.listed.rows.length) at("fresh").hidden = false;
  else readAgain();
}
function readAgain() {
  state.listed.stale = true;
  showList();
}

// ---- filters

function drawFilters() {
  const { selected, overview, listed } = state;
  for (const name of FILTERS.filter((each) => each !== "run" && each !== "status")) {
    const field = at(`f-${name}`), value = selected.get(name) || (name === "order" ? "advantage" : "");
    if (field !== document.activeElement) field.value = value;
  }
  if (!overview) return;
  const runs = overview.runs.map((run) => [run.key, `${runLabel(run)} · seed ${run.seed}`]);
  fillSelect(at("f-run"), [["", "all"], ...runs], selected.get("run") || "");
  const chosen = selected.get("status") || "";
  const statuses = [...new Set([...(listed ? listed.statuses : []), ...(chosen ? [chosen] : [])])].sort();
  fillSelect(at("f-status"), [["", "all"], ...statuses.map((status) => [status, status])], chosen);
}

export function listenToFilters() {
  let typing = 0;
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  at("filters").addEventListener("input", (event) => {
    clearTimeout(typing);
    const name = event.target.id.slice(2), raw = event.target.value;
    const value = name === "order" && raw === "advantage" ? "" : raw;
    typing = setTimeout(() => go({ [name]: value, page: "" }), event.target.tagName === "SELECT" ? 0 : TYPING_MS);
  });
  at("f-clear").addEventListener("click", () => go(Object.fromEntries([...FILTERS, "page"].map((name) => [name, ""]))));
  at("fresh").addEventListener("click", readAgain);
}

// ---- the rows

function drawList() {
  drawFilters();
  drawProblems();
  at("fresh").hidden = true;
  at("count").textContent = howMany(state.listed);
  at("rows").replaceChildren(...state.listed.rows.map(rowNode));
  const pages = Math.max(1, Math.ceil(state.listed.total / PAGE_SIZE)), page = pageNumber();
  at("pager").replaceChildren(...(pages > 1 ? [
    turnButton("‹ earlier", page - 1, pages),
    make("span", `page ${page + 1} of ${pages.toLocaleString("en")}`),
    turnButton("later ›", page + 1, pages),
  ] : []));
}

function howMany({ total, saved }) {
  if (total) return `${total.toLocaleString("en")} of ${saved.toLocaleString("en")} saved rollouts`;
  if (saved) return `None of ${saved.toLocaleString("en")} saved rollouts passes the filter.`;
  if (state.selected.get("run")) return "This run has saved no rollouts yet.";
  return "No rollouts have been saved yet; runs save some every 'run.save_rollouts_every' steps, and this page looks again by itself.";
}

function rowNode(row) {
  const item = make("li"), link = make("a"), left = make("div"), middle = make("div");
  const right = make("div", undefined, "right"), meta = make("div", undefined, "meta");
  const run = state.overview && state.overview.runs.find((each) => each.key === row.run);
  const about = [`seed ${row.seed}`, `step ${row.step}`, `rollout ${row.id}`, row.status, `${row.tokens} tokens`];
  left.append(make("span", show(row.reward, 2), "big"), make("small", "reward"));
  meta.append(run ? armNode(runLabel(run)) : make("span", row.arm), ...about.map((part) => make("span", part)));
  middle.append(make("div", row.prompt || row.task || "–", "task"), meta);
  right.append(make("span", show(row.advantage)), make("small", "|advantage|"));
  if (row.gap !== null) right.append(make("span", show(row.gap, 2)), make("small", "teacher gap"));
  link.href = linkTo(row, {});
  link.title = row.task;
  link.append(left, middle, right);
  item.append(link);
  return item;
}

function turnButton(label, to, pages) {
  const button = make("button", label);
  button.type = "button";
  button.disabled = to < 0 || to >= pages;
  button.addEventListener("click", () => { go({ page: to || "" }, { push: true }); at("list").scrollIntoView(); });
  return button;
}
