"use strict";
// Draws one metric of many runs: a thin line a seed, a heavy one for the mean of an arm's seeds.
const curveView = (() => {
  const { make, shape, show } = tokenView;
  const H = 240, LEFT = 50, RIGHT = 10, TOP = 12, BOTTOM = 30, MOST_POINTS = 600;

  const figure = (v) => {
    const size = Math.abs(v);
    if (size >= 1e5 || (size > 0 && size < 1e-3)) return v.toExponential(1).replace("-", "−");
    return String(Number(v.toPrecision(4))).replace("-", "−");
  };

  function ticks(low, high, count) {
    const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
    const found = [];
    for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9 && found.length < 50; v += step) found.push(Number(v.toPrecision(12)));
    return found;
  }

  // Long runs are drawn as means of neighbouring steps; null where there is no number.
  function thinned(steps, values) {
    const width = Math.ceil(steps.length / MOST_POINTS);
    if (width <= 1) return [steps, values];
    const x = [], y = [];
    for (let i = 0; i < steps.length; i += width) {
      const known = values.slice(i, i + width).filter((v) => v !== null);
      x.push(steps[Math.min(steps.length - 1, i + (width >> 1))]);
      y.push(known.length ? known.reduce((a, b) => a + b) / known.length : null);
    }
    return [x, y];
  }

  function meanOver(runs) {
    const sums = new Map();
    for (const run of runs) run.steps.forEach((step, i) => {
      const value = run.values[i];
      if (value === null) return;
      const held = sums.get(step) || [0, 0];
      sums.set(step, [held[0] + value, held[1] + 1]);
    });
    const steps = [...sums.keys()].sort((a, b) => a - b);
    return { steps, values: steps.map((step) => sums.get(step)[0] / sums.get(step)[1]) };
  }

  // The span of nearly all points; a few far ones run off the edge rather than flatten the rest.
  function span(values) {
    const sorted = Float64Array.from(values).sort(), at = (q) => sorted[Math.round(q * (sorted.length - 1))];
    let low = sorted[0], high = sorted[sorted.length - 1];
    const inner = [at(0.06), at(0.94)], margin = 1.2 * (inner[1] - inner[0]);
    let off = false;
    if (sorted.length >= 8 && margin > 0) {
      if (low < inner[0] - 3 * margin) { low = inner[0] - margin; off = true; }
      if (high > inner[1] + 3 * margin) { high = inner[1] + margin; off = true; }
    }
    if (low === high) { const pad = Math.abs(low) * 0.1 || 1; low -= pad; high += pad; }
    const pad = 0.05 * (high - low);
    return { low: low - pad, high: high + pad, off };
  }

  // arms: [{label, colour, dash, runs: [{seed, steps, values}]}]
  function draw(box, spec, arms, close) {
    const known = arms.map((arm) => ({ ...arm, mean: meanOver(arm.runs) })).filter((arm) => arm.mean.steps.length);
    const title = make("h3", spec.name.replaceAll("_", " ") + (spec.unit && spec.unit !== spec.name ? ` (${spec.unit})` : ""));
    const button = make("button", "×", "close"), caption = make("figcaption");
    button.type = "button";
    button.setAttribute("aria-label", `Remove the curve of ${spec.name}`);
    button.addEventListener("click", close);
    box.replaceChildren(title, button);
    if (!known.length) { box.append(make("p", "No number yet.", "empty")); return; }
    // As wide as its place, so that letters keep their size; drawn again when that changes.
    const inside = getComputedStyle(box), W = Math.max(240, Math.round(box.clientWidth - parseFloat(inside.paddingLeft) - parseFloat(inside.paddingRight)) || 480);
    const xs = known.flatMap((arm) => [arm.mean.steps[0], arm.mean.steps[arm.mean.steps.length - 1]]);
    const first = Math.min(...xs), last = Math.max(first + 1, ...xs);
    const { low, high, off } = span(known.flatMap((arm) => arm.runs.flatMap((run) => run.values.filter((v) => v !== null))));
    const x = (step) => LEFT + (W - LEFT - RIGHT) * (step - first) / (last - first);
    const y = (v) => TOP + (H - TOP - BOTTOM) * (high - v) / (high - low);
    const svg = shape("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
    svg.setAttribute("aria-label", `${spec.name} by step`);
    const label = (text, attributes) => { const node = shape("text", attributes); node.textContent = text; svg.append(node); };
    for (const v of ticks(low, high, 5)) {
      svg.append(shape("path", { d: `M${LEFT} ${y(v).toFixed(1)}H${W - RIGHT}`, stroke: v === 0 ? "var(--muted)" : "var(--edge)", "stroke-width": 1 }));
      label(figure(v), { x: LEFT - 7, y: y(v) + 4, "text-anchor": "end" });
    }
    for (const v of ticks(first, last, W > 380 ? 6 : 4).filter(Number.isInteger)) label(figure(v), { x: x(v), y: H - 10, "text-anchor": "middle" });
    const clip = `clip-${spec.name.replace(/\W/g, "_")}`, frame = shape("clipPath", { id: clip });
    frame.append(shape("rect", { x: LEFT, y: TOP - 4, width: W - LEFT - RIGHT, height: H - TOP - BOTTOM + 8 }));
    const lines = shape("g", { "clip-path": `url(#${clip})`, fill: "none", "stroke-linejoin": "round" });
    const line = ({ steps, values }, attributes) => {
      const [px, py] = thinned(steps, values);
      let path = "", pen = "M";
      px.forEach((step, i) => {
        if (py[i] === null) { pen = "M"; return; }
        path += `${pen}${x(step).toFixed(1)} ${y(py[i]).toFixed(1)}`;
        pen = "L";
      });
      if (px.length === 1) path += "h0.01";
      lines.append(shape("path", { d: path, "stroke-linecap": "round", ...attributes }));
    };
    for (const arm of known) if (arm.runs.length > 1) for (const run of arm.runs) line(run, { stroke: `var(${arm.colour})`, "stroke-width": 1, opacity: 0.4 });
    for (const arm of known) line(arm.mean, { stroke: `var(${arm.colour})`, "stroke-width": 2.2, "stroke-dasharray": arm.dash, "stroke-linecap": arm.dash === "none" ? "round" : "butt" });
    const cursor = shape("path", { stroke: "var(--ink)", "stroke-width": 1, d: "" });
    svg.append(frame, lines, cursor);
    const told = spec.text + (off ? (spec.text ? "; " : "") + "a few points run off the edge" : "");
    caption.textContent = told || "policy step";
    // Numbers at the step under the pointer, in place of the caption; kept when new rows are drawn meanwhile.
    function read(step) {
      box.dataset.step = step ?? "";
      cursor.setAttribute("d", step === null ? "" : `M${x(step).toFixed(1)} ${TOP}V${H - BOTTOM}`);
      if (step === null) { caption.textContent = told || "policy step"; return; }
      const parts = known.map((arm) => {
        const i = arm.mean.steps.indexOf(step);
        return `${arm.label} ${i < 0 ? "–" : show(arm.mean.values[i], 4)}`;
      });
      caption.replaceChildren(make("span", `step ${step}: ${parts.join(" · ")}`, "read"));
    }
    svg.addEventListener("pointermove", (event) => {
      const at = svg.getBoundingClientRect(), place = (event.clientX - at.left) / at.width * W;
      const step = Math.round(first + (last - first) * (place - LEFT) / (W - LEFT - RIGHT));
      if (step >= first && step <= last) read(step);
    });
    svg.addEventListener("pointerleave", () => read(null));
    if (box.dataset.step && box.matches(":hover") && Number(box.dataset.step) <= last) read(Number(box.dataset.step));
    box.append(svg, caption);
  }

  return { draw };
})();
