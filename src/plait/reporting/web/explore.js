// A front to look around in: models with or without a mixer, and those selected side by side.
const STATES = ["any", "with", "without"];

const explore = (place) => {
  const known = JSON.parse(place.querySelector("script").textContent); // key → its mixers
  const wanted = {};
  const told = make("p", { class: "drawn", "aria-live": "polite" });
  const compared = make("div", { class: "compared" });

  const filter = () => {
    let left = 0;
    for (const [key, mixers] of Object.entries(known)) {
      const fine = Object.entries(wanted).every(([name, state]) => state === "any" || mixers.includes(name) === (state === "with"));
      if (fine) { withheld.delete(key); left += 1; } else withheld.add(key);
    }
    for (const row of all("tr[data-key]", place.closest("[data-scope]") ?? document)) {
      if (row.dataset.key in known) row.hidden = withheld.has(row.dataset.key);
    }
    told.textContent = `${left} of ${Object.keys(known).length} models.`;
    redraw();
  };

  const names = [...new Set(Object.values(known).flat())].sort();
  const chips = names.map((name) => {
    wanted[name] = "any";
    const chip = button(name, () => {
      wanted[name] = STATES[(STATES.indexOf(wanted[name]) + 1) % STATES.length];
      chip.dataset.state = wanted[name];
      chip.textContent = { any: name, with: `with ${name}`, without: `without ${name}` }[wanted[name]];
      filter();
    }, { class: "chip", "data-state": "any", title: "Any, only with it, only without it" });
    return chip;
  });

  const show = async () => {
    const keys = [...picked].filter((key) => key in known && modelOf(place, key));
    await Promise.all(keys.map((key) => details(scopeOf(place) + key)));
    if (!keys.length) { compared.replaceChildren(); return; }
    const sheets = keys.map((key) => modelOf(place, key));
    const facts = [...new Set(sheets.flatMap(({ facts }) => facts.map(([what]) => what)))];
    const row = (what, cells) => make("tr", {}, make("th", { scope: "row" }, what), ...cells);
    const body = [
      row("spec", sheets.map(({ spec }) => make("td", {}, make("code", {}, spec)))),
      ...facts.map((what) => row(what, sheets.map(({ facts }) => make("td", { class: "right" }, facts.find(([name]) => name === what)?.[1] ?? "")))),
      row("", keys.map((key) => make("td", { class: "right" }, button("leave out", () => { picked.delete(key); repick(); })))),
    ];
    compared.replaceChildren(make("h3", {}, `${keys.length} selected`),
      make("div", { class: "scroll fixed wide" }, make("table", {}, make("tbody", {}, ...body))),
      button("clear", () => { keys.forEach((key) => picked.delete(key)); repick(); }));
  };

  place.append(make("div", { class: "chips", role: "toolbar", "aria-label": "Filter by mixer", "data-rove": "button" }, ...chips), told, compared);
  settle(place.querySelector(".chips"));
  document.addEventListener("picked", show);
  filter();
};
for (const place of all("[data-explore]")) explore(place);
