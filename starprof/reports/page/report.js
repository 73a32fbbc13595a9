"use strict";
// Draws the charts of a starprof report. Everything comes from this page: nothing is fetched.
(() => {
  const root = document.documentElement;
  const SPAN_COLORS = {
    data_wait: ["#e69f00", "#e8a825"], h2d: ["#cc79a7", "#d88db7"], forward: ["#56b4e9", "#7cc6f0"],
    backward: ["#0072b2", "#3d8fd1"], optimizer: ["#009e73", "#2bb58c"], gc: ["#d55e00", "#ea7a2a"],
    checkpoint: ["#882255", "#b3487f"], eval: ["#aa4499", "#c46bb5"], compile: ["#d9c400", "#f0e442"],
    user: ["#44aa99", "#5dc2b1"], unaccounted: ["#9a9a98", "#83868d"],
  };

  // ---- data ----
  async function inflated(id) {
    const packed = atob(document.getElementById(id).textContent.trim());
    const bytes = Uint8Array.from(packed, (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  }

  class Data {
    constructor(buffer) {
      const length = new DataView(buffer).getUint32(0, true);
      this.buffer = buffer;
      this.document = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
      this.start = Math.ceil((4 + length) / 8) * 8;
    }
    array(place) {
      const type = { u1: Uint8Array, u2: Uint16Array, f4: Float32Array }[place.t];
      return new type(this.buffer, this.start + place.at, place.n);
    }
    matrix(packed) {  // rows of Float32Array, NaN = no value; see starprof.reports.pack
      const codes = this.array(packed);
      const [rows, columns] = packed.shape;
      return Array.from({ length: rows }, (_, row) => Float32Array.from(
        codes.subarray(row * columns, (row + 1) * columns),
        (code) => code === 0 ? NaN : packed.knee * Math.sinh(packed.low + (code - 1) * packed.unit)));
    }
  }

  // ---- theme ----
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const dark = () => root.dataset.theme !== "print" && matchMedia("(prefers-color-scheme: dark)").matches;
  const narrow = (node) => node.clientWidth < 560;
  // Plotly reads a little HTML in its texts; what comes from a run must stay text.
  const plain = (value) => String(value).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const accented = (value) => `<b><span style="color:${css("--accent")}">${plain(value)}</span></b>`;
  const config = { displaylogo: false, responsive: true, displayModeBar: false, showTips: false };

  function layout(node, extra) {
    const axis = { gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, ticks: "", automargin: true,
      tickfont: { size: 12, color: css("--soft") } };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: css("--sans"), size: 13, color: css("--soft") },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 13 } },
      margin: { l: 8, r: 8, t: 8, b: 8 }, showlegend: false, dragmode: "zoom", ...extra,
      xaxis: { ...axis, ...extra.xaxis }, yaxis: { ...axis, ...extra.yaxis },
      ...(extra.xaxis2 ? { xaxis2: { ...axis, ...extra.xaxis2 } } : {}),
      ...(extra.yaxis2 ? { yaxis2: { ...axis, ...extra.yaxis2 } } : {}),
    };
  }
  const title = (text) => ({ text, font: { size: 12.5, color: css("--soft") } });

  // ---- rank x step ----
  // Rows lie at y = 0 downwards, one unit each; culprits among many rows are taller, to be seen at a glance.
  function rowEdges(spec, height) {
    const rows = spec.ranks.length;
    const tall = rows <= spec.tallFrom ? 1 : Math.max(1, Math.min(14, height / (4 * spec.culprits.length)) * rows / height);
    const edges = [0];
    spec.ranks.forEach((_, row) => edges.push(edges[row] + (spec.culprits.includes(row) ? tall : 1)));
    return edges;
  }

  function rankTicks(ranks, culprits, height, centres) {
    const every = Math.max(1, 2 ** Math.ceil(Math.log2(ranks.length * 15 / height)));
    const near = (row) => culprits.some((c) => c !== row && Math.abs(c - row) < every * 0.8);
    const rows = ranks.map((_, row) => row).filter((row) => culprits.includes(row) || (row % every === 0 && !near(row)));
    return { tickvals: rows.map((row) => centres[row]), ticktext: rows.map((row) => culprits.includes(row) ? accented(`rank ${ranks[row]}`)
      : plain(row === 0 || ranks.length <= 40 ? `rank ${ranks[row]}` : ranks[row])) };
  }

  function ramp(id, colors, low, high) {
    const bar = document.createElement("span");
    bar.className = "ramp";
    bar.style.background = `linear-gradient(to right, ${colors.join(", ")})`;
    document.getElementById(id).replaceChildren(low, bar, high);
  }

  function scale(view, colors) {
    const digits = view.high - view.low < 10 ? 1 : 0;
    ramp("heatmap-scale", colors, view.low.toFixed(digits), `${view.high.toFixed(digits)} ${view.about}`);
  }

  function heatmap(data, spec, node) {
    const checked = document.querySelector('input[name="view"]:checked');
    const view = spec.views[checked ? Number(checked.value) : 0];
    const rows = spec.ranks.length, few = rows <= 40, names = spec.ranks.map(String);
    const height = few ? Math.max(110, rows * (rows <= 8 ? 40 : 22)) : Math.min(620, Math.max(380, rows * 2));
    const colors = css("--heat").split(" ");
    const firsts = Array.from(data.array(spec.firsts));
    const half = spec.width / 2;
    const medians = data.array(view.medians);
    const x = firsts.map((first) => first + half - 0.5);
    const label = spec.width > 1 ? `steps %{customdata}` : "step %{x}";
    const edges = rowEdges(spec, height);
    const centres = spec.ranks.map((_, row) => (edges[row] + edges[row + 1]) / 2);
    const traces = [{
      type: "heatmap", z: data.matrix(view.z), x, y: edges, text: names.map((name) => Array(x.length).fill(name)), zmin: view.low, zmax: view.high,
      colorscale: colors.map((color, at) => [at / (colors.length - 1), color]), ygap: few ? 2 : 0, xgap: 0,
      showscale: false, hovertemplate: `rank %{text}, ${label}<br><b>%{z:,.3~f}</b> ${plain(view.about)}<extra></extra>`,
    }];
    scale(view, colors);
    if (spec.width > 1) {
      const bins = firsts.map((first) => `${first}-${Math.min(first + spec.width - 1, spec.lastStep)}`);
      traces[0].customdata = spec.ranks.map(() => bins);
    }
    const bars = !narrow(node);
    if (bars) {
      traces.push({ type: "bar", orientation: "h", y: centres, text: names, textposition: "none", x: Array.from(medians), xaxis: "x2",
        width: centres.map((_, row) => (edges[row + 1] - edges[row]) * (few ? 0.62 : 1)),
        marker: { color: spec.ranks.map((_, row) => spec.culprits.includes(row) ? css("--accent") : css("--peer-band")), line: { width: 0 } },
        hovertemplate: `rank %{text}<br><b>%{x:,.3~f}</b> ${plain(view.about)}, median<extra></extra>` });
    }
    const shapes = [], annotations = [];
    for (const [row, first, last] of spec.marks) {
      shapes.push({ type: "rect", x0: first - 0.5, x1: last + 0.5, y0: edges[row], y1: edges[row + 1], xref: "x", yref: "y",
        line: { color: css("--ink"), width: few ? 2 : 1.4 }, fillcolor: "rgba(0,0,0,0)" });
    }
    if (spec.onset !== null) {
      const left = spec.onset - 0.5;
      shapes.push({ type: "line", x0: left, x1: left, xref: "x", yref: "paper", y0: 0, y1: 1, line: { color: css("--ink"), width: 1, dash: "dot" } });
      const late = (left - firsts[0]) / (spec.lastStep - firsts[0] + 1) > 0.7;
      annotations.push({ x: left, xref: "x", y: 1, yref: "paper", yanchor: "bottom", yshift: 1, xanchor: late ? "right" : "left", xshift: late ? 4 : -4,
        showarrow: false, text: `<b>from step ${spec.onset}</b>`, font: { size: 12.5, color: css("--ink") } });
    }
    const end = bars ? 0.87 : 1;
    return Plotly.react(node, traces, layout(node, {
      height: height + 72, margin: { l: 8, r: 12, t: 24, b: 48 }, shapes, annotations,
      xaxis: { domain: [0, end], range: [firsts[0] - 0.5, spec.lastStep + 0.5], showgrid: false, title: title("step"), nticks: narrow(node) ? 5 : 10 },
      yaxis: { range: [edges[rows], 0], showgrid: false, ...rankTicks(spec.ranks, spec.culprits, height, centres) },
      ...(bars ? { xaxis2: { domain: [0.885, 1], side: "bottom", nticks: 3, range: [0, Math.max(view.high, ...medians.filter(Number.isFinite))], title: title("median, ms"), anchor: "y" } } : {}),
    }), config);
  }

  // ---- anatomy ----
  const added = [];
  function legend(spans, color) {
    const keys = spans.map((span) => {
      const key = document.createElement("span");
      key.className = `swatch ${span.key}`;
      key.style.setProperty("--color", color(span));
      key.append(span.label);
      return key;
    });
    document.getElementById("anatomy-legend").replaceChildren(...keys);
  }

  function anatomy(data, spec, node) {
    const checked = document.querySelector('input[name="window"]:checked');
    const parts = data.array(spec.windows[checked ? Number(checked.value) : 0].spans);
    const rows = [...new Set([...spec.shown, ...added])].sort((a, b) => a - b);
    const names = rows.map((row) => `rank ${spec.ranks[row]}`);
    const at = (row, span) => parts[row * spec.spans.length + span];
    const step = (row) => spec.spans.reduce((sum, _, span) => sum + at(row, span), 0);
    const shade = dark() ? 1 : 0;
    const color = (span) => span.key === "blocked" ? css("--pale") : SPAN_COLORS[span.key][shade];
    legend(spec.spans.filter((_, index) => rows.some((row) => at(row, index) >= spec.legendFrom * step(row))), color);
    const traces = spec.spans.map((span, index) => ({
      type: "bar", orientation: "h", y: names, x: rows.map((row) => at(row, index)),
      customdata: rows.map((row) => [100 * at(row, index) / step(row), step(row)]),
      marker: { color: color(span), line: { width: 0 },
        pattern: span.key === "unaccounted" ? { shape: "/", size: 5, solidity: 0.3, fillmode: "overlay", fgcolor: css("--paper") } : {} },
      hovertemplate: `%{y}: ${plain(span.label)}<br><b>%{x:,.3~f} ms</b>, %{customdata[0]:.1f} % of %{customdata[1]:,.1f} ms<extra></extra>`,
    }));
    const culprit = (row) => spec.culprits.includes(row);
    return Plotly.react(node, traces, layout(node, {
      barmode: "stack", bargap: 0.32, height: rows.length * (rows.length <= 8 ? 40 : 27) + 56, margin: { l: 8, r: 12, t: 4, b: 46 },
      xaxis: { title: title("ms of a mean step"), rangemode: "tozero", nticks: narrow(node) ? 5 : 10 },
      yaxis: { type: "category", autorange: "reversed", showgrid: false, tickvals: names, ticktext: rows.map((row, i) => culprit(row) ? accented(names[i]) : plain(names[i])) },
    }), config);
  }

  // ---- time lines ----
  function band(x, low, high) {  // one closed outline per stretch without gaps
    const outline = { x: [], y: [] };
    for (let from = 0; from < x.length; from++) {
      if (!Number.isFinite(low[from])) continue;
      let to = from;
      while (to + 1 < x.length && Number.isFinite(low[to + 1])) to++;
      for (let i = from; i <= to; i++) { outline.x.push(x[i]); outline.y.push(high[i]); }
      for (let i = to; i >= from; i--) { outline.x.push(x[i]); outline.y.push(low[i]); }
      outline.x.push(null); outline.y.push(null);
      from = to;
    }
    return outline;
  }

  function timeline(data, spec, chart, node) {
    const x = Array.from(data.array(chart.x));
    const numbers = (place) => Array.from(data.array(place), (v) => Number.isFinite(v) ? v : null);
    const hover = (name) => `${plain(name)}: <b>%{y:,.3~f}</b> ${plain(chart.unit)}<extra></extra>`;
    const traces = [];
    if (chart.mid) {
      traces.push({ type: "scatter", mode: "lines", ...band(x, data.array(chart.low), data.array(chart.high)), fill: "toself",
        fillcolor: css("--peer-band"), line: { width: 0 }, opacity: 0.65, hoverinfo: "skip" });
      traces.push({ type: "scatter", mode: "lines", x, y: numbers(chart.mid), line: { color: css("--peer"), width: 1.5 }, hovertemplate: hover(`median of ${chart.peersName}`) });
    }
    chart.lines.forEach((line, at) => traces.push({ type: "scatter", mode: "lines", x, y: numbers(line.y),
      line: { color: css(["--accent", "--culprit-2", "--culprit-3"][at]), width: 2.2 }, hovertemplate: hover(line.name) }));
    const shapes = spec.window ? [{ type: "rect", xref: "x", yref: "paper", x0: spec.window[0], x1: spec.window[1], y0: 0, y1: 1,
      fillcolor: css("--shade"), line: { width: 0 }, layer: "below" },
      { type: "line", xref: "x", yref: "paper", x0: spec.window[0], x1: spec.window[0], y0: 0, y1: 1, line: { color: css("--ink"), width: 1, dash: "dot" } }] : [];
    return Plotly.react(node, traces, layout(node, {
      height: 200, margin: { l: 8, r: 8, t: 8, b: 8 }, shapes, hovermode: "x unified",
      xaxis: { range: [0, spec.end], showgrid: false, nticks: 7, ticksuffix: " s", hoverformat: ",.1f" },
      yaxis: { nticks: 5, rangemode: chart.zero ? "tozero" : "normal" },
    }), config);
  }

  // ---- synchronisation ----
  // Labels of switches that would cover each other stand on lines of their own; where there are too many, only numbers.
  function switchLabels(switches, end, width) {
    const brief = switches.length > 8 || width < 560, free = [];
    return switches.map(([at, number, name]) => {
      const label = brief ? number : `${number} ${name}`;
      const length = label.length * 7 + 14, late = at / end * width + length > width;
      const from = at / end * width - (late ? length : 0);
      let line = free.findIndex((until) => until <= from);
      if (line < 0) line = free.length;
      free[line] = from + length;
      return { at, label, late, line };
    });
  }

  function synchronisation(data, spec, node) {
    const [rows, bins] = spec.part.shape;
    const codes = data.array(spec.part), width = spec.end / bins;
    const part = Array.from({ length: rows }, (_, row) => Array.from(codes.subarray(row * bins, (row + 1) * bins), (code) => code ? (code - 1) / 254 : null));
    const x = Array.from({ length: bins }, (_, bin) => (bin + 0.5) * width);
    const numbers = (place) => Array.from(data.array(place), (v) => Number.isFinite(v) ? v : null);
    const few = rows <= 40, strip = few ? Math.max(84, rows * (rows <= 8 ? 20 : 12)) : Math.min(420, Math.max(300, rows));
    const colors = [css("--grid"), css("--part")];
    ramp("synchronisation-scale", colors, "no part", "even part");
    const labels = switchLabels(spec.switches, spec.end, node.clientWidth - 70);
    const above = 10 + 16 * Math.max(0, ...labels.map((label) => label.line + 1));
    const lines = 210, between = 26, inner = lines + between + strip;
    const line = (name, values, color, size) => ({ type: "scatter", mode: "lines", x, y: numbers(values), line: { color: css(color), width: size },
      hovertemplate: `${name}: <b>%{y:,.3~f}</b> ms<extra></extra>` });
    const edges = rowEdges(spec, strip), centres = spec.ranks.map((_, row) => (edges[row] + edges[row + 1]) / 2);
    const traces = [line("own time of the slowest rank", spec.slowest, "--accent", 1.6), line("median step time", spec.median, "--peer", 2.2), {
      type: "heatmap", z: part, x, y: edges, yaxis: "y2", zmin: 0, zmax: 1, showscale: false, ygap: few ? 2 : 0,
      colorscale: [[0, colors[0]], [1, colors[1]]], text: spec.ranks.map((rank) => Array(bins).fill(String(rank))),
      hovertemplate: "rank %{text}: <b>%{z:.0%}</b> of an even part<extra></extra>" }];
    const shapes = labels.map(({ at }) => ({ type: "line", x0: at, x1: at, xref: "x", yref: "paper", y0: 0, y1: 1, line: { color: css("--ink"), width: 1, dash: "dot" } }));
    const annotations = labels.map(({ at, label, late, line: level }) => ({ x: at, xref: "x", y: 1, yref: "paper", yanchor: "bottom", yshift: 1 + 16 * level,
      xanchor: late ? "right" : "left", xshift: late ? 4 : -4, showarrow: false, text: `<b>${plain(label)}</b>`, font: { size: 12.5, color: css("--ink") } }));
    return Plotly.react(node, traces, layout(node, {
      height: inner + above + 50, margin: { l: 8, r: 12, t: above, b: 50 }, shapes, annotations,
      xaxis: { range: [0, spec.end], showgrid: false, title: title("seconds of the run"), nticks: narrow(node) ? 5 : 10, hoverformat: ",.1f", anchor: "y2" },
      yaxis: { domain: [(strip + between) / inner, 1], rangemode: "tozero", nticks: 5, title: title("ms a step") },
      yaxis2: { domain: [0, strip / inner], range: [edges[rows], 0], showgrid: false, ...rankTicks(spec.ranks, spec.culprits, strip, centres) },
    }), config);
  }

  // ---- page ----
  const drawings = [];  // [node, draw]: all charts that have been seen
  function show(node, draw) {
    node.querySelector(".nojs")?.remove();
    drawings.push([node, draw]);
    return draw();
  }
  const redraw = () => drawings.forEach(([, draw]) => draw());
  const seen = (node) => !node.closest("details:not([open])");

  function wire(data) {
    const sections = data.document.charts;
    const start = [];
    const place = (key) => document.getElementById(`chart-${key}`);
    const draw = { heatmap, anatomy, synchronisation };
    for (const [anchor, spec] of Object.entries(sections)) {
      if (draw[spec.kind]) start.push([place(anchor), () => draw[spec.kind](data, spec, place(anchor))]);
      else for (const chart of spec.charts) {
        const node = place(`counter-${chart.key}`);
        start.push([node, () => timeline(data, spec, chart, node)]);
      }
    }
    const waiting = start.filter(([node]) => !seen(node));
    start.filter(([node]) => seen(node)).forEach(([node, go]) => show(node, go));
    document.querySelectorAll("details").forEach((box) => box.addEventListener("toggle", () => {
      for (const entry of waiting.splice(0)) seen(entry[0]) ? show(...entry) : waiting.push(entry);
    }));
    document.querySelectorAll(".switch input").forEach((input) => input.addEventListener("change", redraw));
    document.getElementById("anatomy-add")?.addEventListener("change", (event) => {
      const row = sections.anatomy.ranks.indexOf(Number(event.target.value));
      if (row >= 0) { added.push(row); redraw(); }
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    addEventListener("beforeprint", () => { root.dataset.theme = "print"; redraw(); });
    addEventListener("afterprint", () => { delete root.dataset.theme; redraw(); });
  }

  async function main() {
    root.classList.add("scripted");
    if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old to unpack the charts");
    const [library, buffer] = await Promise.all([inflated("starprof-plotly"), inflated("starprof-data")]);
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(library);  // its hash stands in the page's security policy
    document.head.append(script);
    wire(new Data(buffer));
    root.dataset.drawn = "yes";
  }
  main().catch((error) => {
    root.dataset.drawn = "no";
    document.querySelectorAll(".nojs").forEach((node) => { node.textContent = `The chart could not be drawn: ${error.message}`; });
    console.error(error);
  });
})();
