// Charts drawn from their numbers, as wide as their place: zoom, series that can be hidden, a limit that can be moved.
const SHAPES = {
  square: [[-0.88, -0.88], [0.88, -0.88], [0.88, 0.88], [-0.88, 0.88]],
  triangle: [[0, -1.25], [1.15, 0.8], [-1.15, 0.8]],
  diamond: [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
  wedge: [[0, 1.25], [1.15, -0.8], [-1.15, -0.8]],
};
const MARKS = ["circle", ...Object.keys(SHAPES)];
const SIZES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const short = (value, least = 1e4) => {
  if (value && (Math.abs(value) >= 1e16 || Math.abs(value) < 1e-4)) return value.toExponential(0).replace("+", "");
  const [size, letter] = SIZES.find(([size]) => Math.abs(value) >= Math.max(size, least)) ?? [1, ""];
  return String(Number((value / size).toPrecision(4))) + letter;
};
// Tick labels of one axis, all written alike: 1k, 2k … 20k, but 1000, 2000 … where no number is longer; as powers of ten
// where one is beyond 1e15.
const tickLabels = (ticks) => {
  const largest = Math.max(...ticks.map(Math.abs));
  return ticks.map((value) => largest >= 1e15 ? value.toExponential(0).replace("+", "") : short(value, largest >= 1e4 ? 1e3 : 1e4));
};
const colourOf = (number) => (number === null ? "var(--none)" : `var(--s${number % 8})`);

const roundTicks = (low, high, about) => {
  if (!(high > low)) return [low];
  const rough = (high - low) / about, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => power * times >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k <= Math.floor(high / step + 1e-9); k += 1) found.push(k * step);
  return found.length < 3 && about < 12 ? roundTicks(low, high, 2 * about) : found; // two numbers tell no scale
};
const logTicks = (low, high, about) => {
  for (const steps of [[1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      found.push(...steps.map((step) => step * 10 ** power).filter((value) => value >= low && value <= high));
    }
    if (found.length <= about + 2 && found.length > 1) return found;
  }
  if (high / low < 10) return roundTicks(low, high, about);
  // Many powers of ten: every second, third … of them.
  const first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high)), every = Math.ceil((last - first) / about);
  return Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, place) => 10 ** (first + place * every));
};

const hidden = new Set();
const withheld = new Set(); // keys that a filter leaves out
const picked = new Set(); // keys that were selected to be compared
const plots = [];
const redraw = () => plots.forEach((plot) => plot.draw());
const repick = () => { redraw(); document.dispatchEvent(new Event("picked")); };

class Plot {
  constructor(figure) {
    this.figure = figure;
    this.data = JSON.parse(figure.querySelector("script").textContent);
    this.limit = this.data.limit?.value;
    this.home = this.extent();
    this.view = { ...this.home };
    this.picture = make("svg:svg", { class: "chart", role: "group", "aria-label": this.data.title, "data-rove": ".mark" });
    figure.querySelector("svg").replaceWith(this.picture);
    this.caption = make("p", { class: "drawn", "aria-live": "polite" });
    figure.append(this.bar(), this.caption);
    this.drag();
    new ResizeObserver(() => this.draw()).observe(figure);
  }

  points() {
    return this.data.series.flatMap((series) => series.points.filter((point) => !withheld.has(point.key))
      .map((point) => ({ ...point, series })));
  }

  // Other numbers for the same chart, as of a training that goes on: what the reader zoomed to stays.
  update(data) {
    const whole = JSON.stringify(this.view) === JSON.stringify(this.home);
    this.data = data;
    this.home = this.extent();
    if (whole) this.view = { ...this.home };
    this.draw();
  }

  extent() {
    const { x, y, limit } = this.data, points = this.points();
    const xs = points.flatMap((point) => [point.x, ...(point.span ?? [])]);
    const ys = points.flatMap((point) => [point.y, ...(point.ends ?? [])]);
    if (limit && limit.value <= 2.5 * Math.max(...xs)) xs.push(limit.value);
    for (const line of this.data.lines ?? []) (line.axis === "x" ? xs : ys).push(line.at);
    const of = (values, axis, room) => {
      const low = axis.from ?? Math.min(...values), high = Math.max(...values);
      if (axis.log) {
        const room = high > low ? (high / low) ** 0.02 : 2; // one value alone has room beside it, too
        return [low / room, high * room];
      }
      const beside = room * (high - low || Math.abs(high) || 1);
      return [axis.from ?? Math.max(low - beside, low < 0 ? -Infinity : 0), high + beside];
    };
    const [x0, x1] = of(xs.length ? xs : [1], x, 0.05), [y0, y1] = of(ys.length ? ys : [0, 1], y, 0.08);
    return { x0, x1, y0, y1 };
  }

  bar() {
    const made = make("div", { class: "bar" });
    const zoom = make("span", { class: "zoom", role: "toolbar", "aria-label": "Zoom", "data-rove": "button" },
      button("+", () => this.zoom(0.5), { "aria-label": "Zoom in", title: "Zoom in; or drag over the chart" }),
      button("−", () => this.zoom(2), { "aria-label": "Zoom out" }),
      button("all", () => { this.view = { ...this.home }; this.draw(); }, { "aria-label": "Show all" }));
    if (this.data.select) {
      const brush = button("select", () => {
        this.brushing = !this.brushing;
        brush.setAttribute("aria-pressed", this.brushing);
      }, { "aria-pressed": "false", title: "Drag over models to select them", class: "brush" });
      zoom.append(brush);
    }
    settle(zoom);
    made.append(zoom);
    if (this.data.limit) made.append(this.slider());
    return made;
  }

  slider() {
    const { value, name, unit } = this.data.limit;
    const xs = this.points().map((point) => point.x), low = Math.min(...xs), high = Math.max(value, ...xs);
    const input = make("input", { type: "range", min: low, max: high, step: (high - low) / 400 || 1, value,
      "aria-label": `Limit of ${name}, ${unit}` });
    const said = make("output", {}, `${short(value)} ${unit}`);
    input.addEventListener("input", () => {
      this.limit = Math.abs(Number(input.value) - value) < (high - low) / 400 ? value : Number(input.value);
      said.textContent = `${Number(this.limit.toPrecision(3))} ${unit}`;
      redraw();
    });
    return make("label", { class: "limit" }, `limit of ${name} `, input, " ", said);
  }

  // About what is lit or chosen, else the middle; on a logarithmic axis by factors.
  zoom(by) {
    const at = this.points().find((point) => point.chosen), { view } = this;
    for (const [axis, a, b] of [["x", "x0", "x1"], ["y", "y0", "y1"]]) {
      const to = this.data[axis].log ? Math.log : Number, from = this.data[axis].log ? Math.exp : Number;
      const low = to(view[a]), high = to(view[b]);
      const middle = by < 1 && at && at[axis] >= view[a] && at[axis] <= view[b] ? to(at[axis]) : (low + high) / 2;
      const share = (middle - low) / (high - low);
      this.view[a] = Math.max(from(middle - share * by * (high - low)), this.home[a]);
      this.view[b] = Math.min(from(middle + (1 - share) * by * (high - low)), this.home[b]);
    }
    this.draw();
  }

  // With a mouse or a pen: a finger scrolls the page.
  drag() {
    let from = null;
    const box = make("svg:rect", { class: "drag" });
    const at = (event) => {
      const frame = this.picture.getBoundingClientRect();
      return [event.clientX - frame.left, event.clientY - frame.top];
    };
    this.picture.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.button || event.target.closest(".mark")) return;
      from = at(event);
      this.picture.setPointerCapture(event.pointerId);
    });
    this.picture.addEventListener("pointermove", (event) => {
      if (!from) return;
      const [x, y] = at(event);
      const place = { x: Math.min(x, from[0]), y: Math.min(y, from[1]), width: Math.abs(x - from[0]), height: Math.abs(y - from[1]) };
      for (const [name, value] of Object.entries(place)) box.setAttribute(name, value);
      this.picture.append(box);
    });
    this.picture.addEventListener("pointerup", (event) => {
      if (!from) return;
      const [[x0, y0], [x1, y1]] = [from, at(event)];
      from = null;
      box.remove();
      if (Math.abs(x1 - x0) < 8 || Math.abs(y1 - y0) < 8) return;
      if (this.brushing) {
        const inside = (point) => (this.xOf(point.x) - x0) * (this.xOf(point.x) - x1) <= 0
          && (this.yOf(point.y) - y0) * (this.yOf(point.y) - y1) <= 0;
        for (const point of this.points()) if (point.key && !hidden.has(point.series.name) && inside(point)) picked.add(point.key);
        repick();
        return;
      }
      const { view, home } = this, xs = [x0, x1].map((x) => this.xAt(x)), ys = [y0, y1].map((y) => this.yAt(y));
      this.view = { x0: Math.max(home.x0, Math.min(...xs)), x1: Math.min(home.x1, Math.max(...xs)),
        y0: Math.max(home.y0, Math.min(...ys)), y1: Math.min(home.y1, Math.max(...ys)) };
      if (!(this.view.x1 > this.view.x0 && this.view.y1 > this.view.y0)) this.view = view;
      this.draw();
    });
    this.picture.addEventListener("dblclick", () => { this.view = { ...this.home }; this.draw(); });
  }

  scales() {
    const width = Math.max(240, this.figure.clientWidth), height = width < 480 ? 300 : this.data.height;
    const frame = { left: 46, right: width - 10, top: 28, bottom: height - 42 };
    const labels = tickLabels(this.ticks(this.data.y, this.view.y0, this.view.y1, (frame.bottom - frame.top) / 44));
    const longest = Math.max(...labels.map((text) => text.length));
    frame.left = Math.max(46, 14 + 7 * longest); // 7 pixels per character of a tick's label
    const scale = (axis, low, high, first, last) => {
      const to = axis.log ? Math.log : Number, from = axis.log ? Math.exp : Number;
      const slope = (last - first) / (to(high) - to(low));
      return [(value) => first + slope * (to(value) - to(low)), (pixel) => from(to(low) + (pixel - first) / slope)];
    };
    [this.xOf, this.xAt] = scale(this.data.x, this.view.x0, this.view.x1, frame.left, frame.right);
    [this.yOf, this.yAt] = scale(this.data.y, this.view.y0, this.view.y1, frame.bottom, frame.top);
    return { width, height, ...frame };
  }

  draw() {
    const focused = this.picture.contains(document.activeElement) ? document.activeElement.dataset.place : null;
    const frame = this.scales(), { picture, data, view } = this;
    picture.replaceChildren();
    picture.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
    picture.setAttribute("height", frame.height);
    const id = `clip${plots.indexOf(this)}`;
    picture.append(make("svg:clipPath", { id }, make("svg:rect", { x: frame.left - 7, y: frame.top - 7,
      width: frame.right - frame.left + 14, height: frame.bottom - frame.top + 14 })));
    this.axes(frame);
    const inside = make("svg:g", { "clip-path": `url(#${id})` });
    picture.append(inside);
    this.bounds(inside, frame);
    const beyond = beyondLimits(), shown = data.series.filter((series) => !hidden.has(series.name));
    if (data.step) this.step(inside, shown, frame);
    for (const series of shown) if (series.joined) this.line(inside, series);
    let place = 0, seen = 0;
    for (const point of this.points().filter((point) => shown.includes(point.series)).sort((a, b) => a.x - b.x)) {
      if (point.x < view.x0 || point.x > view.x1 || point.y < view.y0 || point.y > view.y1) continue;
      seen += 1;
      if (!point.series.bare) this.mark(inside, point, beyond.has(point.key), (place += 1));
    }
    this.say(seen, shown, beyond);
    settle(picture);
    if (focused) picture.querySelector(`[data-place="${focused}"]`)?.focus();
  }

  ticks(axis, low, high, room) {
    const values = axis.log ? this.data.series.flatMap((series) => series.points.map((point) => point[axis === this.data.x ? "x" : "y"])) : [];
    if (values.length && values.every((value) => Number.isInteger(Math.log2(value)))) { // lengths that double
      const shown = [...new Set(values)].filter((value) => value >= low && value <= high).sort((a, b) => a - b);
      if (shown.length > 1) return shown.filter((_, place) => place % Math.ceil(shown.length / Math.max(2, room)) === 0);
    }
    return (axis.log ? logTicks : roundTicks)(low, high, Math.max(2, Math.floor(room)));
  }

  axes(frame) {
    const { data, picture, view } = this, wide = frame.right - frame.left, high = frame.bottom - frame.top;
    const up = this.ticks(data.y, view.y0, view.y1, high / 44), across = this.ticks(data.x, view.x0, view.x1, wide / 64);
    const upLabels = tickLabels(up), acrossLabels = tickLabels(across);
    for (const [place, value] of up.entries()) {
      const y = this.yOf(value);
      picture.append(make("svg:line", { class: "rule", x1: frame.left, x2: frame.right, y1: y, y2: y }),
        make("svg:text", { class: "tick", x: frame.left - 7, y: y + 4, "text-anchor": "end" }, upLabels[place]));
    }
    for (const [place, value] of across.entries()) {
      const x = this.xOf(value);
      picture.append(make("svg:line", { class: "axis", x1: x, x2: x, y1: frame.bottom, y2: frame.bottom + 5 }),
        make("svg:text", { class: "tick", x, y: frame.bottom + 19, "text-anchor": "middle" }, acrossLabels[place]));
    }
    picture.append(make("svg:line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }),
      make("svg:text", { class: "name", x: (frame.left + frame.right) / 2, y: frame.bottom + 37, "text-anchor": "middle" }, data.x.label),
      make("svg:text", { class: "name", x: 2, y: 14 }, data.y.label));
  }

  // The limit with what is beyond it, and lines that stand for a value.
  bounds(inside, frame) {
    if (this.limit !== undefined && this.limit <= this.view.x1) {
      const x = Math.max(this.xOf(this.limit), frame.left);
      inside.append(make("svg:rect", { class: "beyond", x, y: frame.top, width: Math.max(0, frame.right - x), height: frame.bottom - frame.top }),
        make("svg:line", { class: "bound", x1: x, x2: x, y1: frame.top, y2: frame.bottom }));
    }
    if (this.data.known_to != null && this.data.known_to < this.view.x1) { // what is beyond is extrapolated
      const x = Math.max(this.xOf(this.data.known_to), frame.left);
      inside.append(make("svg:rect", { class: "extrapolated", x, y: frame.top, width: frame.right - x, height: frame.bottom - frame.top }));
    }
    for (const { axis, at, label } of this.data.lines ?? []) {
      const [x1, x2] = axis === "x" ? [this.xOf(at), this.xOf(at)] : [frame.left, frame.right];
      const [y1, y2] = axis === "x" ? [frame.top, frame.bottom] : [this.yOf(at), this.yOf(at)];
      const late = axis === "y" || x1 > (frame.left + frame.right) / 2;
      // Beside the lower end of the line where points are near its upper end.
      const low = this.points().some(({ x, y }) => Math.abs(this.xOf(x) - x1) < 80 && this.yOf(y) < frame.top + 26);
      inside.append(make("svg:line", { class: "bound", x1, x2, y1, y2 }),
        make("svg:text", { class: "tick", x: axis === "y" ? frame.right : x1 + (late ? -6 : 6),
          y: axis === "y" ? y1 - 6 : low ? frame.bottom - 8 : frame.top + 12, "text-anchor": late ? "end" : "start" }, label));
    }
  }

  // The most of y that at most so much x reaches, among what is shown.
  step(inside, shown, frame) {
    const corners = [];
    let best = -Infinity;
    for (const point of shown.flatMap((series) => series.points).sort((a, b) => a.x - b.x || b.y - a.y)) {
      if (point.y <= best || withheld.has(point.key)) continue;
      if (corners.length) corners.push([this.xOf(point.x), this.yOf(best)]);
      corners.push([this.xOf(point.x), this.yOf(point.y)]);
      best = point.y;
    }
    if (!corners.length) return;
    corners.push([Math.max(frame.right, corners.at(-1)[0]), this.yOf(best)]);
    inside.append(make("svg:polyline", { class: "step", points: corners.map((corner) => corner.join(",")).join(" ") }));
  }

  line(inside, series) {
    const points = series.points.map((point) => `${this.xOf(point.x)},${this.yOf(point.y)}`).join(" ");
    inside.append(make("svg:polyline", { class: series.faint ? "line faint" : "line", points, stroke: colourOf(series.number), "data-key": series.key }));
  }

  mark(inside, point, beyond, place) {
    const { series } = point, x = this.xOf(point.x), y = this.yOf(point.y), colour = colourOf(series.number);
    if (point.span) {
      inside.append(make("svg:line", { stroke: colour, x1: this.xOf(point.span[0]), x2: this.xOf(point.span[1]), y1: y, y2: y }));
    }
    if (point.ends) {
      inside.append(make("svg:line", { stroke: colour, x1: x, x2: x, y1: this.yOf(point.ends[0]), y2: this.yOf(point.ends[1]) }));
    }
    if (point.chosen || picked.has(point.key)) inside.append(make("svg:circle", { class: "ring", cx: x, cy: y, r: 12 }));
    const radius = series.number === null ? 4 : 5.5, shape = MARKS[(series.number ?? 0) % MARKS.length];
    const corners = SHAPES[shape]?.map(([dx, dy]) => `${x + radius * dx},${y + radius * dy}`).join(" ");
    const known = modelOf(this.figure, point.key) !== undefined;
    inside.append(make(corners ? "svg:polygon" : "svg:circle", {
      class: `mark${beyond ? " dim" : ""}`, "data-key": point.key, "data-hint": point.hint, "data-place": place,
      "data-x": point.x, "data-y": point.y, role: known ? "button" : "img", "aria-label": point.hint,
      fill: series.hollow ? "var(--card)" : colour, stroke: series.hollow ? colour : "var(--card)",
      ...(corners ? { points: corners } : { cx: x, cy: y, r: radius }) }));
  }

  // What is drawn of how many, and what the limits leave.
  say(seen, shown, beyond) {
    const total = this.points().length, parts = [];
    if (this.data.of) parts.push(seen === total ? this.data.of : `${this.data.of}; ${seen} of the ${total} in view`);
    else if (seen < total) parts.push(`${seen} of ${total} points in view`);
    if (this.data.limit) {
      const held = shown.flatMap((series) => series.points).filter((point) => !beyond.has(point.key) && !withheld.has(point.key));
      const best = held.reduce((most, point) => (most && most.y >= point.y ? most : point), null);
      parts.push(best ? `largest within the limits: ${best.name}, ${short(best.y)} ${this.data.y.label.replace(/ \(. better\)$/, "")}` : "nothing is within the limits");
    }
    this.caption.textContent = parts.map((part) => part[0].toUpperCase() + part.slice(1) + ".").join(" ");
  }
}

// Above the limit of any chart.
const beyondLimits = () => new Set(plots.filter((plot) => plot.limit !== undefined)
  .flatMap((plot) => plot.points().filter((point) => point.x > plot.limit).map((point) => point.key)));

for (const figure of all("figure.plot")) plots.push(new Plot(figure));
redraw();

for (const entries of all(".legend")) {
  for (const entry of all("li[data-series]", entries)) {
    const name = entry.dataset.series;
    const toggle = button("", () => {
      if (!hidden.delete(name)) hidden.add(name);
      for (const same of all(".legend button")) same.setAttribute("aria-pressed", !hidden.has(same.dataset.series));
      redraw();
    }, { "aria-pressed": "true", "data-series": name, "data-key": entry.dataset.key, title: "Show or hide" });
    toggle.append(...entry.childNodes);
    entry.append(toggle);
  }
  entries.dataset.rove = "button";
  settle(entries);
}
for (const chart of all(".chart")) {
  if (chart.dataset.rove) continue;
  chart.setAttribute("role", "group");
  chart.dataset.rove = "[data-hint]";
  settle(chart);
}
