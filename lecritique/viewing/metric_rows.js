// Metrics of the runs, step by step: what is here already is kept, and only what is new is asked for.
import { ask } from "./state.js";

const store = new Map();      // rows by run: {generation, version, steps, columns}, of the metrics in `stored`
let stored = "", versions = 0;

export const rowsOf = (run) => store.get(run.key);

// Other metrics than before are read from the first step on; runs that are gone are forgotten.
export function keepRows(names, runs) {
  if (names.join() !== stored) { store.clear(); stored = names.join(); }
  for (const key of store.keys()) if (!runs.some((run) => run.key === key)) store.delete(key);
}

// Fetches the rows of a run that are not here yet; what a resumed run does again replaces what was here.
export async function readOn(run, names) {
  const held = store.get(run.key)
    || { generation: -1, version: 0, steps: [], columns: Object.fromEntries(names.map((name) => [name, []])) };
  if (store.has(run.key) && held.generation === run.generation && last(held.steps) === run.newest) return;
  for (let more = true; more;) {
    const query = new URLSearchParams({ run: run.key, generation: held.generation, after: last(held.steps) ?? -1 });
    names.forEach((name) => query.append("metric", name));
    const answer = await ask("rows", query);
    if (stored !== names.join()) return;   // other metrics were chosen meanwhile
    take(held, answer, names);
    more = answer.more;
  }
  store.set(run.key, held);
}

const last = (steps) => steps[steps.length - 1];

function take(held, answer, names) {
  if (answer.drop_from !== null) {
    const keep = held.steps.filter((step) => step < answer.drop_from).length;
    held.steps.length = keep;
    for (const name of names) held.columns[name].length = keep;
  }
  held.generation = answer.generation;
  held.steps.push(...answer.steps);
  for (const name of names) held.columns[name].push(...answer.columns[name]);
  if (answer.steps.length || answer.drop_from !== null) held.version = ++versions;
}
