"use strict";
// Draws one trajectory token by token from a record of tokens.py; the report and the live page both use it.
const tokenView = (() => {
  const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
  // What tokens can be coloured by: one hue from low to high, or two about zero. `of` names the scale's entry.
  const COLOURS = {
    value: { label: "value", hue: "--value", trace: "The critic's value along the response; the dashed line is the reward it should have foreseen." },
    advantage: { label: "advantage", signed: true, trace: "The advantage along the response, about zero." },
    modulated: { label: "modulated advantage", signed: true, trace: "The advantage after the teacher's modulation, about zero." },
    gap: { label: "teacher gap", signed: true, unit: " nats", trace: "Teacher minus student log-prob along the response: above zero where the teacher found the token likelier." },
    logprob: { label: "log-prob", hue: "--minus", down: true, unit: " nats", trace: "The log-prob of each sampled token, in nats." },
  };
  const KEYS = Object.keys(COLOURS);

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
  const available = (sample) => KEYS.filter((key) => sample[key]);

  function range(key, scale) {
    if (key === "value") return [scale.low, scale.high];
    return COLOURS[key].down ? [-scale[key], 0] : [-scale[key], scale[key]];
  }

  function paint(node, value, key, scale) {
    const kind = COLOURS[key];
    let weight = 0, hue = kind.hue || "--value";
    if (value !== null && value !== undefined) {
      const [low, high] = range(key, scale);
      if (kind.signed) {
        weight = 70 * Math.sqrt(Math.abs(value) / high);
        hue = value < 0 ? "--minus" : "--plus";
      } else {
        const share = (value - low) / (high - low || 1);
        weight = 6 + 64 * (kind.down ? Math.sqrt(Math.max(0, 1 - share)) : share);
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

  function pairs(box, facts) {
    box.replaceChildren(...facts.map(([name, value]) => {
      const pair = make("div");
      pair.append(make("dt", name), make("dd", String(value)));
      return pair;
    }));
  }

  function facts(sample) {
    const found = [["reward", show(sample.reward)], ["task", sample.task || "–"], ["rollout", sample.id],
      ["seed", sample.seed], ["step", sample.step], ["status", sample.status], ["estimator", sample.estimator]];
    if (sample.segment) found.push(["segment", sample.segment]);
    if (sample.baseline !== null) found.push(["group baseline", show(sample.baseline)]);
    if (sample.rho !== null) found.push(["rho", show(sample.rho)]);
    if (sample.version !== null) found.push(["critic version", sample.version]);
    if (!sample.value) found.push(["values", "none saved"]);
    return found;
  }

  function trace(box, sample, key, scale) {
    const series = key && sample[key];
    box.replaceChildren();
    box.place = () => {};
    const actions = sample.action.map((act, i) => (act ? i : -1)).filter((i) => i >= 0);
    if (!series || actions.length < 2) return;
    const [low, high] = range(key, scale);
    const x = (n) => 600 * n / (actions.length - 1), y = (v) => 86 - 80 * (v - low) / (high - low || 1);
    const svg = shape("svg", { viewBox: "0 0 600 92", preserveAspectRatio: "none", role: "img" });
    svg.setAttribute("aria-label", `${COLOURS[key].label} of each action token`);
    const line = (attributes) => svg.append(shape("path", { fill: "none", "vector-effect": "non-scaling-stroke", ...attributes }));
    const flat = (v, dash) => line({ d: `M0 ${y(v)}H600`, stroke: "var(--muted)", "stroke-width": 1, "stroke-dasharray": dash });
    actions.forEach((i, n) => {
      if (n && sample.turn[i] !== sample.turn[actions[n - 1]])
        line({ d: `M${x(n - 0.5)} 2V90`, stroke: "var(--rule)", "stroke-width": 1 });
    });
    if (key === "value" && sample.reward !== null) flat(sample.reward, "5 4");
    if (key !== "value") flat(0, "none");
    let path = "", pen = "M";
    actions.forEach((i, n) => {
      if (series[i] === null) { pen = "M"; return; }
      path += `${pen}${x(n).toFixed(2)} ${y(series[i]).toFixed(2)}`;
      pen = "L";
    });
    const hue = COLOURS[key].hue || "--plus";
    line({ d: path, stroke: `var(${hue})`, "stroke-width": 2, "stroke-linejoin": "round" });
    const cursor = shape("path", { stroke: "var(--ink)", "stroke-width": 1, "vector-effect": "non-scaling-stroke", d: "" });
    svg.append(cursor);
    box.append(svg, make("p", COLOURS[key].trace));
    box.place = (i) => cursor.setAttribute("d", i === null ? "" : `M${x(actions.indexOf(i))} 0V92`);
  }

  function scaleBar(box, key, scale) {
    if (!key) { box.replaceChildren(); return; }
    const bar = make("i"), kind = COLOURS[key], [low, high] = range(key, scale);
    const tint = (hue, w) => `color-mix(in srgb, var(${hue}) ${w}%, transparent)`;
    bar.style.background = kind.signed
      ? `linear-gradient(90deg, ${tint("--minus", 70)}, transparent, ${tint("--plus", 70)})`
      : `linear-gradient(90deg, ${tint(kind.hue, kind.down ? 70 : 6)}, ${tint(kind.hue, kind.down ? 6 : 70)})`;
    const ends = [show(low, 2), (kind.signed ? "+" : "") + show(high, 2) + (kind.unit || "")];
    box.replaceChildren(make("span", kind.label), make("span", ends[0]), bar, make("span", ends[1]));
  }

  function token(sample, i, key, scale) {
    const raw = sample.text[i], node = make("span", undefined, "tok");
    raw.split(/(\n)/).forEach((part) => {
      if (part === "\n") node.append(make("span", "↵", "mark"), "\n");
      else if (part) node.append(part);
    });
    if (!raw) node.append(make("span", "∅", "mark"));
    node.dataset.i = i;
    paint(node, key && sample[key] ? sample[key][i] : null, key || "value", scale);
    return node;
  }

  // `bare` leaves out what the policy did not write.
  function text(box, sample, key, scale, { bare = false } = {}) {
    const blocks = [];
    if (sample.context && !bare) {
      const seen = make("details");
      seen.append(make("summary", "What only the critic saw"), make("pre", sample.context, "wrapped"));
      blocks.push(seen);
    }
    const total = sample.text.length;
    for (let i = 0; i < total;) {
      let end = i;
      while (end < total && sample.action[end] === sample.action[i] && sample.turn[end] === sample.turn[i]) end++;
      const acts = sample.action[i], block = make("div", undefined, acts ? "turn" : "turn given"), pre = make("pre");
      const first = i === 0;
      block.append(make("h4", acts ? `turn ${sample.turn[i] + 1} · policy` : first ? "prompt" : end === total ? "after the last turn" : "environment"), pre);
      if (acts) for (let t = i; t < end; t++) pre.append(token(sample, t, key, scale));
      else pre.append(sample.text.slice(i, end).join("").replace(/^\n+|\n+$/g, ""));
      if (acts || !bare) blocks.push(block);
      i = end;
    }
    if (sample.omitted) blocks.push(make("p", `${sample.omitted} further tokens are not shown.`, "empty"));
    box.replaceChildren(...blocks);
  }

  // Shows the numbers of the token under the pointer, or of the one that was tapped.
  function pointing(box, tip, current, place) {
    function point(node) {
      box.querySelectorAll(".tok.on").forEach((other) => other.classList.remove("on"));
      if (!node) { tip.hidden = true; place(null); return; }
      const i = Number(node.dataset.i), sample = current(node);
      node.classList.add("on");
      place(i, node);
      const lines = KEYS.filter((key) => sample[key] || !["modulated", "gap"].includes(key)).flatMap((key) =>
        [make("br"), `${COLOURS[key].label} ${sample[key] ? show(sample[key][i], 4) : "–"}${COLOURS[key].unit || ""}`]);
      tip.replaceChildren(make("b", JSON.stringify(sample.text[i]).slice(0, 120)), ...lines.slice(1));
      tip.hidden = false;
      const at = node.getClientRects()[0], width = tip.offsetWidth, height = tip.offsetHeight;
      tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
      tip.style.top = `${at.top - height - 8 > 8 ? at.top - height - 8 : at.bottom + 8}px`;
    }
    box.addEventListener("pointerover", (event) => point(event.target.closest(".tok")));
    box.addEventListener("pointerleave", () => point(null));
    box.addEventListener("click", (event) => point(event.target.closest(".tok")));
    addEventListener("scroll", () => point(null), { passive: true });
    return point;
  }

  return { COLOURS, make, shape, show, available, buttons, pairs, facts, trace, scaleBar, text, pointing };
})();
