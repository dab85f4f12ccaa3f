"use strict";
(() => {
  const root = document.getElementById("tokens");
  if (!root) return;
  const data = JSON.parse(document.getElementById("token-data").textContent);
  const at = (id) => document.getElementById(id);
  const state = { arm: 0, sample: 0, colour: "value" };
  const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;

  // Text from data only ever enters the page through textContent.
  const make = (tag, text, className) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  };
  const shape = (tag, attributes) => {
    const node = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const show = (value, digits = 3) =>
    value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");
  const current = () => data.arms[state.arm].samples[state.sample];
  const column = (sample) => (state.colour === "value" ? sample.value : sample.advantage);

  function paint(node, value) {
    const scale = data.scale;
    let weight = 0, hue = "--value";
    if (value !== null && value !== undefined) {
      if (state.colour === "value") {
        weight = 6 + 64 * (value - scale.low) / (scale.high - scale.low || 1);
      } else {
        weight = 70 * Math.sqrt(Math.abs(value) / scale.advantage);
        hue = value < 0 ? "--minus" : "--plus";
      }
    }
    node.style.setProperty("--hue", `var(${hue})`);
    node.style.setProperty("--w", Math.max(0, Math.min(70, weight)).toFixed(1));
  }

  function buttons(box, entries, chosen, choose) {
    box.replaceChildren(...entries.map(([key, label, off]) => {
      const button = make("button", label);
      button.type = "button";
      button.disabled = Boolean(off);
      button.setAttribute("aria-pressed", String(key === chosen));
      button.addEventListener("click", () => choose(key));
      return button;
    }));
  }

  function drawControls() {
    const select = at("token-arm");
    if (!select.options.length) {
      data.arms.forEach((arm, index) => select.add(new Option(arm.name, index)));
      select.addEventListener("change", () => { state.arm = Number(select.value); state.sample = 0; draw(); });
    }
    const samples = data.arms[state.arm].samples;
    buttons(at("token-sample"), samples.map((s, i) => [i, s.kind]), state.sample, (i) => { state.sample = i; draw(); });
    const sample = current();
    if (!column(sample)) state.colour = sample.value ? "value" : "advantage";
    buttons(at("token-colour"), [["value", "value", !sample.value], ["advantage", "advantage", !sample.advantage]],
      state.colour, (key) => { state.colour = key; draw(); });
  }

  function drawFacts(sample) {
    const facts = [["reward", show(sample.reward)], ["task", sample.task || "–"], ["rollout", sample.id],
      ["seed", sample.seed], ["step", sample.step], ["status", sample.status], ["estimator", sample.estimator]];
    if (sample.segment) facts.push(["segment", sample.segment]);
    if (sample.baseline !== null) facts.push(["group baseline", show(sample.baseline)]);
    if (sample.rho !== null) facts.push(["rho", show(sample.rho)]);
    if (sample.version !== null) facts.push(["critic version", sample.version]);
    if (!sample.value) facts.push(["values", "none saved"]);
    at("token-facts").replaceChildren(...facts.map(([name, value]) => {
      const pair = make("div");
      pair.append(make("dt", name), make("dd", String(value)));
      return pair;
    }));
  }

  function drawTrace(sample) {
    const box = at("token-trace"), series = column(sample);
    box.replaceChildren();
    const actions = sample.action.map((act, i) => (act ? i : -1)).filter((i) => i >= 0);
    if (!series || actions.length < 2) return;
    const valued = state.colour === "value", scale = data.scale;
    const [low, high] = valued ? [scale.low, scale.high] : [-scale.advantage, scale.advantage];
    const x = (n) => 600 * n / (actions.length - 1), y = (v) => 86 - 80 * (v - low) / (high - low || 1);
    const svg = shape("svg", { viewBox: "0 0 600 92", preserveAspectRatio: "none", role: "img" });
    svg.setAttribute("aria-label", valued ? "Value of each action token" : "Advantage of each action token");
    const line = (attributes) => svg.append(shape("path", { fill: "none", "vector-effect": "non-scaling-stroke", ...attributes }));
    const flat = (v, dash) => line({ d: `M0 ${y(v)}H600`, stroke: "var(--muted)", "stroke-width": 1, "stroke-dasharray": dash });
    actions.forEach((i, n) => {
      if (n && sample.turn[i] !== sample.turn[actions[n - 1]])
        line({ d: `M${x(n - 0.5)} 2V90`, stroke: "var(--rule)", "stroke-width": 1 });
    });
    if (valued && sample.reward !== null) flat(sample.reward, "5 4");
    if (!valued) flat(0, "none");
    let path = "", pen = "M";
    actions.forEach((i, n) => {
      if (series[i] === null) { pen = "M"; return; }
      path += `${pen}${x(n).toFixed(2)} ${y(series[i]).toFixed(2)}`;
      pen = "L";
    });
    line({ d: path, stroke: valued ? "var(--value)" : "var(--plus)", "stroke-width": 2, "stroke-linejoin": "round" });
    const cursor = shape("path", { id: "token-cursor", stroke: "var(--ink)", "stroke-width": 1, "vector-effect": "non-scaling-stroke", d: "" });
    svg.append(cursor);
    box.append(svg, make("p", valued
      ? "The critic's value along the response; the dashed line is the reward it should have foreseen."
      : "The advantage along the response, about zero."));
    box.place = (i) => cursor.setAttribute("d", i === null ? "" : `M${x(actions.indexOf(i))} 0V92`);
  }

  function drawScale() {
    const bar = make("i"), scale = data.scale, valued = state.colour === "value";
    const tint = (hue, w) => `color-mix(in srgb, var(${hue}) ${w}%, transparent)`;
    bar.style.background = valued
      ? `linear-gradient(90deg, ${tint("--value", 6)}, ${tint("--value", 70)})`
      : `linear-gradient(90deg, ${tint("--minus", 70)}, transparent, ${tint("--plus", 70)})`;
    const ends = valued ? [show(scale.low, 2), show(scale.high, 2)] : [show(-scale.advantage, 2), "+" + show(scale.advantage, 2)];
    at("token-scale").replaceChildren(make("span", state.colour), make("span", ends[0]), bar, make("span", ends[1]));
  }

  function token(sample, i) {
    const raw = sample.text[i], node = make("span", undefined, "tok");
    raw.split(/(\n)/).forEach((part) => {
      if (part === "\n") node.append(make("span", "↵", "mark"), "\n");
      else if (part) node.append(part);
    });
    if (!raw) node.append(make("span", "∅", "mark"));
    node.dataset.i = i;
    const series = column(sample);
    paint(node, series ? series[i] : null);
    return node;
  }

  function drawText(sample) {
    const blocks = [];
    if (sample.context) {
      const seen = make("details");
      seen.append(make("summary", "What only the critic saw"), Object.assign(make("pre", sample.context), { style: "white-space:pre-wrap" }));
      blocks.push(seen);
    }
    const total = sample.text.length;
    for (let i = 0; i < total;) {
      let end = i;
      while (end < total && sample.action[end] === sample.action[i] && sample.turn[end] === sample.turn[i]) end++;
      const acts = sample.action[i], block = make("div", undefined, acts ? "turn" : "turn given"), pre = make("pre");
      const first = i === 0;
      block.append(make("h4", acts ? `turn ${sample.turn[i] + 1} · policy` : first ? "prompt" : end === total ? "after the last turn" : "environment"), pre);
      if (acts) for (let t = i; t < end; t++) pre.append(token(sample, t));
      else pre.append(sample.text.slice(i, end).join("").replace(/^\n+|\n+$/g, ""));
      blocks.push(block);
      i = end;
    }
    if (sample.omitted) blocks.push(make("p", `${sample.omitted} further tokens are not shown.`, "empty"));
    at("token-text").replaceChildren(...blocks);
  }

  const tip = at("token-tip");
  function point(node) {
    root.querySelectorAll(".tok.on").forEach((other) => other.classList.remove("on"));
    const trace = at("token-trace");
    if (!node) { tip.hidden = true; if (trace.place && trace.firstChild) trace.place(null); return; }
    const i = Number(node.dataset.i), sample = current();
    node.classList.add("on");
    if (trace.place && trace.firstChild) trace.place(i);
    const of = (values) => (values ? show(values[i], 4) : "–");
    tip.replaceChildren(make("b", JSON.stringify(sample.text[i]).slice(0, 120)), `value ${of(sample.value)}`, make("br"),
      `advantage ${of(sample.advantage)}`, make("br"), `log-prob ${of(sample.logprob)} nats`);
    tip.hidden = false;
    const box = node.getClientRects()[0], width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - width - 8))}px`;
    tip.style.top = `${box.top - height - 8 > 8 ? box.top - height - 8 : box.bottom + 8}px`;
  }
  const text = at("token-text");
  text.addEventListener("pointerover", (event) => point(event.target.closest(".tok")));
  text.addEventListener("pointerleave", () => point(null));
  text.addEventListener("click", (event) => point(event.target.closest(".tok")));
  addEventListener("scroll", () => point(null), { passive: true });

  function draw() {
    drawControls();
    const sample = current();
    drawFacts(sample);
    drawTrace(sample);
    drawScale();
    drawText(sample);
    point(null);
  }
  state.arm = Math.max(0, data.arms.findIndex((arm) => arm.name === data.first));
  drawControls();
  at("token-arm").value = String(state.arm);
  draw();
})();
