// One trajectory: its tokens, what only the critic saw, its group, and the way to those before and after it.
import { ask, at, hash, replaceAddress, state, view } from "./state.js";
import { PAGE_SIZE, fetchList, linkTo, listIsOf, listQuery, pageNumber } from "./trajectory_list.js";

const { COLOURS, make, show, available, buttons, pairs, facts, trace, scaleBar, text, pointing } = tokenView;
const TO_THE_LIST = { view: "list", at_run: "", at_step: "", at_row: "" };

let colour = null;

const asked = () => {
  const { selected } = state;
  const address = { run: selected.get("at_run"), step: selected.get("at_step"), row: selected.get("at_row") };
  return new URLSearchParams(Object.entries(address).map(([key, value]) => [key, value || ""])).toString();
};

export async function showOne() {
  const wanted = asked();
  try {
    if (!state.opened || state.opened.query !== wanted) {
      const answer = await ask("trajectory", wanted);
      if (view() !== "one" || asked() !== wanted) return;   // another one was asked for meanwhile
      state.opened = { ...answer, query: wanted };
    }
    at("one-problem").hidden = true;
    at("one-panel").hidden = false;
    drawOne();
  } catch (error) {
    state.opened = null;
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
  const { sample, siblings, scale, members } = state.opened;
  if (!colour || !sample[colour]) {
    colour = available(sample).includes("advantage") && !sample.value ? "advantage" : available(sample)[0] || null;
  }
  const keys = Object.keys(COLOURS).filter((key) => sample[key] || !["modulated", "gap"].includes(key));
  const choices = keys.map((key) => [key, COLOURS[key].label, !sample[key]]);
  buttons(at("token-colour"), choices, colour, (key) => { colour = key; drawOne(); });
  pairs(at("token-facts"), [["arm", sample.arm], ...facts(sample)]);
  trace(at("token-trace"), sample, colour, scale);
  scaleBar(at("token-scale"), colour, scale);
  drawTold(state.opened);
  text(at("token-text"), { ...sample, context: null }, colour, scale);
  if (!sample.text.length) {
    at("token-text").replaceChildren(make("p", `This rollout has no tokens: it ended as '${sample.status}'.`, "empty"));
  }
  const some = members > siblings.length ? `members, ${siblings.length} shown` : "members";
  at("group-title").textContent = siblings.length > 1 ? `Its group: ${members} ${some}` : "It is alone in its group";
  at("siblings").replaceChildren(...siblings.map(siblingCard));
  point(null);
  pointSibling(null);
}

function drawTold({ sample, prompt }) {
  const told = [["the task, as it was asked", prompt], ["what only the critic saw", sample.context]];
  at("told").replaceChildren(...told.filter(([, words]) => words).map(([title, words]) => {
    const box = make("div");
    box.append(make("h4", title), make("pre", words, "wrapped"));
    return box;
  }));
}

function siblingCard(sibling, index) {
  const box = make("div", undefined, sibling.own ? "sibling own" : "sibling");
  const head = make("div", undefined, "head"), earned = make("div", undefined, "head"), body = make("div");
  const name = make("a", `rollout ${sibling.id}${sibling.segment ? `, segment ${sibling.segment}` : ""}`);
  name.href = hash({ at_row: sibling.index });
  head.append(name, make("span", sibling.own ? "this one" : sibling.status));
  earned.append(make("b", show(sibling.reward)), make("span", "return"));
  box.dataset.i = index;
  text(body, sibling, colour, state.opened.scale, { bare: true });
  if (!sibling.text.length) body.append(make("p", `no tokens: ${sibling.status}`, "empty"));
  box.append(head, earned, body);
  if (sibling.context && sibling.context !== state.opened.sample.context) {
    const seen = make("details");
    seen.append(make("summary", "what only the critic saw"), make("pre", sibling.context, "wrapped"));
    box.append(seen);
  }
  return box;
}

const point = pointing(at("token-text"), at("token-tip"), () => state.opened.sample, (i) => at("token-trace").place?.(i));
const siblingOf = (node) => state.opened.siblings[Number(node.closest(".sibling").dataset.i)];
const pointSibling = pointing(at("siblings"), at("token-tip"), siblingOf, () => {});

// ---- before and after, in the order of the list

const isShown = (row) => new URLSearchParams({ run: row.run, step: row.step, row: row.index }).toString() === asked();

// A neighbour's place in the list; its row is undefined where it stands on another page.
function neighbour(offset) {
  const here = listIsOf(pageNumber()) ? state.listed.rows.findIndex(isShown) : -1;
  if (here < 0) return null;
  const place = pageNumber() * PAGE_SIZE + here + offset;
  return place < 0 || place >= state.listed.total ? null : { place, row: state.listed.rows[here + offset] };
}

async function step(offset) {
  const next = neighbour(offset);
  if (!next) return;
  const page = Math.floor(next.place / PAGE_SIZE);
  const row = next.row || (await ask("trajectories", listQuery(page))).rows[next.place - page * PAGE_SIZE];
  if (row) replaceAddress(linkTo(row, { page: page || "" }));
}

function drawStepsThrough() {
  const back = make("a", "‹ all trajectories"), here = neighbour(0);
  back.href = hash(TO_THE_LIST);
  at("steps-through").replaceChildren(back, stepButton("← previous", -1), stepButton("next →", 1), ...(here
    ? [make("span", `${(here.place + 1).toLocaleString("en")} of ${state.listed.total.toLocaleString("en")}`)] : []));
}

function stepButton(label, offset) {
  const button = make("button", label);
  button.type = "button";
  button.disabled = !neighbour(offset);
  button.addEventListener("click", () => step(offset));
  return button;
}

export function listenToKeys() {
  addEventListener("keydown", (event) => {
    const typed = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (view() !== "one" || event.altKey || event.ctrlKey || event.metaKey || typed) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      event.preventDefault();
      step(event.key === "ArrowLeft" ? -1 : 1);
    }
    if (event.key === "Escape") location.hash = hash(TO_THE_LIST);
  });
}
