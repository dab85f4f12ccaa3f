// What all views of the page share: what is selected, which stands in the address after '#' so that a link leads back
// to it; the newest answers of the server; and the elements that they write to.
const { make } = tokenView;

export const FILTERS = ["text", "run", "status", "least_reward", "most_reward", "least_step", "most_step", "order"];

export const state = {
  selected: new URLSearchParams(),   // what the address says
  overview: null,                    // the newest answer of /api/overview
  listed: null, listedFor: "",       // the page of trajectories that is shown, and what it was asked for
  opened: null,                      // the trajectory that is shown
};

export const at = (id) => document.getElementById(id);

export async function ask(path, query) {
  const response = await fetch(`/api/${path}?${query || ""}`);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
  return answer;
}

// ---- the address

export const view = () => (["list", "one"].includes(state.selected.get("view")) ? state.selected.get("view") : "overview");

export function hash(changes) {
  const next = new URLSearchParams(state.selected);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") next.delete(key);
    else next.set(key, value);
  }
  return "#" + next;
}

let follow = () => {};
export function onAddress(callback) { follow = callback; }

// Goes to another selection; only what is pushed can be gone back from.
export function go(changes, { push = false } = {}) {
  const next = hash(changes);
  if (push) { location.hash = next; return; }
  replaceAddress(next);
}
export function replaceAddress(next) {
  history.replaceState(null, "", next);
  follow();
}

// ---- parts of the page that more than one view writes

export function fillSelect(select, options, chosen) {
  const wanted = JSON.stringify([options, chosen]);
  if (select.dataset.holds === wanted || (select === document.activeElement && select.options.length)) return;
  select.dataset.holds = wanted;
  select.replaceChildren(...options.map(([value, label]) => new Option(label, value)));
  select.value = chosen;
}

export function drawProblems(extra) {
  const { overview, listed } = state;
  const problems = [...new Set([
    ...(overview ? overview.problems : []),
    ...(listed && view() !== "overview" ? listed.problems : []),
    ...(extra ? [extra] : []),
  ])];
  at("problems").hidden = !problems.length;
  at("problems").replaceChildren(...problems.map((problem) => make("li", problem)));
}
