// The live page: follows the address, and looks again for what runs have written.
import { shownRuns } from "./arms.js";
import { keepRows, readOn } from "./metric_rows.js";
import { drawOverview, listenToOverview, shownMetrics } from "./overview.js";
import { ask, at, drawProblems, hash, onAddress, state, view } from "./state.js";
import { listenToKeys, showOne } from "./trajectory.js";
import { listenToFilters, offerNewRollouts, showList } from "./trajectory_list.js";

const LOOK_AGAIN_MS = 1500;

function readAddress() {
  state.selected = new URLSearchParams(location.hash.slice(1));
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

let looking = false;
async function look() {
  if (looking) return;
  looking = true;
  try {
    state.overview = await ask("overview");
    const names = shownMetrics();
    keepRows(names, state.overview.runs);
    drawOverview();
    if (view() === "overview" && names.length) {
      for (const run of shownRuns()) if (run.newest !== null) await readOn(run, names);
      drawOverview();
    }
    if (view() === "list") offerNewRollouts();
  } catch (error) {
    drawProblems(`The page could not be brought up to date: ${error.message}.`);
  } finally {
    looking = false;
  }
}

onAddress(readAddress);
listenToOverview(look);
listenToFilters();
listenToKeys();
addEventListener("hashchange", () => { readAddress(); look(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
setInterval(() => { if (!document.hidden) look(); }, LOOK_AGAIN_MS);
readAddress();
look();
