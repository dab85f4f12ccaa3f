"use strict";
(() => {
  const root = document.getElementById("tokens");
  if (!root) return;
  const { COLOURS, available, buttons, pairs, facts, trace, scaleBar, text, pointing } = tokenView;
  const data = JSON.parse(document.getElementById("token-data").textContent);
  const at = (id) => document.getElementById(id);
  const state = { arm: 0, sample: 0, colour: "value" };
  const current = () => data.arms[state.arm].samples[state.sample];

  function drawControls() {
    const select = at("token-arm");
    if (!select.options.length) {
      data.arms.forEach((arm, index) => select.add(new Option(arm.name, index)));
      select.addEventListener("change", () => { state.arm = Number(select.value); state.sample = 0; draw(); });
    }
    const samples = data.arms[state.arm].samples, sample = current();
    buttons(at("token-sample"), samples.map((s, i) => [i, s.kind]), state.sample, (i) => { state.sample = i; draw(); });
    if (!sample[state.colour]) state.colour = available(sample)[0] || "value";
    // What a run without critic lacks is shown as lacking; what only runs with a teacher have, only where it is.
    const keys = Object.keys(COLOURS).filter((key) => sample[key] || key === "value" || key === "advantage");
    buttons(at("token-colour"), keys.map((key) => [key, COLOURS[key].label, !sample[key]]),
      state.colour, (key) => { state.colour = key; draw(); });
  }

  const point = pointing(at("token-text"), at("token-tip"), current, (i) => (at("token-trace").place || (() => {}))(i));
  function draw() {
    drawControls();
    const sample = current();
    pairs(at("token-facts"), facts(sample));
    trace(at("token-trace"), sample, state.colour, data.scale);
    scaleBar(at("token-scale"), state.colour, data.scale);
    text(at("token-text"), sample, state.colour, data.scale);
    point(null);
  }
  state.arm = Math.max(0, data.arms.findIndex((arm) => arm.name === data.first));
  drawControls();
  at("token-arm").value = String(state.arm);
  draw();
})();
