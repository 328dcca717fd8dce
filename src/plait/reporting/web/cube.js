// Models over three axes: a cube that can be turned.
class Cube {
  constructor(figure) {
    this.figure = figure;
    this.data = JSON.parse(figure.querySelector("script").textContent);
    this.turn = 0.7;
    this.tilt = 0.45;
    this.picture = make("svg:svg", { class: "chart", role: "group", "aria-label": this.data.title, "data-rove": ".mark" });
    figure.querySelector("svg").replaceWith(this.picture);
    const by = (turn, tilt) => () => { this.turn += turn; this.tilt = Math.max(0, Math.min(1.4, this.tilt + tilt)); this.draw(); };
    figure.append(make("div", { class: "bar" }, make("span", { class: "zoom", role: "toolbar", "aria-label": "Turn", "data-rove": "button" },
      button("⟲", by(-0.25, 0), { "aria-label": "Turn left" }), button("⟳", by(0.25, 0), { "aria-label": "Turn right" }),
      button("↑", by(0, 0.15), { "aria-label": "Look from above" }), button("↓", by(0, -0.15), { "aria-label": "Look from the side" })),
    make("span", { class: "drawn" }, "Drag to turn.")));
    settle(figure.querySelector(".zoom"));
    this.drag();
    new ResizeObserver(() => this.draw()).observe(figure);
    document.addEventListener("picked", () => this.draw());
  }

  drag() {
    let from = null;
    this.picture.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.button || event.target.closest(".mark")) return;
      from = [event.clientX, event.clientY, this.turn, this.tilt];
      this.picture.setPointerCapture(event.pointerId);
    });
    this.picture.addEventListener("pointermove", (event) => {
      if (!from) return;
      this.turn = from[2] + (event.clientX - from[0]) / 160;
      this.tilt = Math.max(0, Math.min(1.4, from[3] + (event.clientY - from[1]) / 160));
      this.draw();
    });
    this.picture.addEventListener("pointerup", () => { from = null; });
  }

  // A place in the cube, each of its numbers from 0 to 1, in pixels; and how near it is.
  at([up, right, back]) {
    const x = right - 0.5, z = back - 0.5, y = up - 0.5;
    const across = x * Math.cos(this.turn) - z * Math.sin(this.turn);
    const deep = x * Math.sin(this.turn) + z * Math.cos(this.turn);
    return [this.middle[0] + this.edge * across, this.middle[1] - this.edge * (y * Math.cos(this.tilt) - deep * Math.sin(this.tilt)), deep];
  }

  draw() {
    const width = Math.max(240, this.figure.clientWidth), height = Math.min(460, Math.max(320, 0.8 * width));
    this.middle = [width / 2, height / 2];
    this.edge = Math.min(width * 0.5, height * 0.6);
    const { picture } = this, { axes, points } = this.data;
    picture.replaceChildren();
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", height);
    const corners = [0, 1].flatMap((a) => [0, 1].flatMap((b) => [0, 1].map((c) => [a, b, c])));
    for (const from of corners) {
      for (const axis of [0, 1, 2]) {
        if (from[axis]) continue;
        const to = from.with(axis, 1), [x1, y1] = this.at(from), [x2, y2] = this.at(to);
        picture.append(make("svg:line", { class: from.every((value) => !value) ? "axis" : "rule", x1, y1, x2, y2 }));
      }
    }
    const share = (point) => point.v.map((value, axis) => (axes[axis].high > axes[axis].low
      ? (value - axes[axis].low) / (axes[axis].high - axes[axis].low) : 0.5));
    const seen = points.filter((point) => !withheld.has(point.key) && !hidden.has(point.group))
      .map((point) => ({ ...point, place: this.at(share(point)), foot: this.at(share(point).with(0, 0)) }))
      .sort((a, b) => a.place[2] - b.place[2]);
    for (const point of seen) {
      const [x, y] = point.place, colour = colourOf(point.number);
      picture.append(make("svg:line", { class: "rule", x1: x, y1: y, x2: point.foot[0], y2: point.foot[1] }));
      if (picked.has(point.key)) picture.append(make("svg:circle", { class: "ring", cx: x, cy: y, r: 11 }));
      picture.append(make("svg:circle", { class: "mark", cx: x, cy: y, r: 5, fill: colour, stroke: "var(--card)", role: "button",
        "data-key": point.key, "data-hint": point.hint, "aria-label": point.hint }));
    }
    axes.forEach((axis, place) => { // last, on a halo: nothing covers them
      const end = [0, 0, 0].with(place, 1.06), [x, y] = this.at(end);
      const side = x > width * 0.62 ? "end" : x < width * 0.38 ? "start" : "middle";
      const at = Math.max(4, Math.min(width - 4, x + (side === "end" ? 24 : side === "start" ? -24 : 0)));
      const below = Math.min(height - 20, Math.max(12, place ? y + 14 : y - 20));
      picture.append(make("svg:text", { class: "name halo", x: at, y: below, "text-anchor": side }, axis.label),
        make("svg:text", { class: "tick halo", x: at, y: below + 15, "text-anchor": side }, `${short(axis.low)} to ${short(axis.high)}`));
    });
    settle(picture);
  }
}
const cubes = all("figure.cube").map((figure) => new Cube(figure));
cubes.forEach((cube) => { cube.draw(); plots.push(cube); });
cubes.forEach((cube) => { cube.points = () => []; });
