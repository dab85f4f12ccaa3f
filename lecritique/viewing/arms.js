// Which runs are shown, by what name, and how their arms look: as in the report.
import { state } from "./state.js";

const { make, shape } = tokenView;
const ARM_COLOURS = 12, PLAIN_ARMS = 7;
// Of the plain arms and of every further seven.
const DASHES = ["none", "6 2.5", "2.5 2.5", "9 2.5 2.5 2.5"];

export const shownRuns = () =>
  state.overview.runs.filter((run) => !state.selected.get("of") || run.collection === state.selected.get("of"));

export function runLabel(run) {
  const { collections } = state.overview;
  if (Object.keys(collections).length <= 1) return run.arm;
  const collection = collections[run.collection];
  return run.collection === run.key ? collection || run.key : `${collection || run.collection} · ${run.arm}`;
}

export const labels = () => [...new Set(state.overview.runs.map(runLabel))];

export function lookOf(label) {
  const place = labels().indexOf(label), round = Math.floor(place / PLAIN_ARMS);
  return { colour: `--arm-${place % ARM_COLOURS}`, dash: DASHES[round % DASHES.length] };
}

export const armsOf = (runs) => [...new Set(runs.map(runLabel))].map((label) => ({
  label, ...lookOf(label), runs: runs.filter((run) => runLabel(run) === label),
}));

export function armNode(label) {
  const node = make("span", undefined, "arm"), { colour, dash } = lookOf(label);
  const plain = dash === "none";
  const swatch = plain ? make("i") : shape("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" });
  if (!plain) swatch.append(shape("path", { d: "M1 5H25", "stroke-dasharray": dash }));
  swatch.style.setProperty("--c", `var(${colour})`);
  node.append(swatch, make("span", label));
  return node;
}
