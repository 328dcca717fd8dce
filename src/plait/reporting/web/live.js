// What goes on now: a place with `data-live` asks its address again and again and takes over what has changed.
const REST = 15000; // milliseconds until the next try after a failure, or while nobody looks

const freshen = (old, now) => {
  const [was, is] = [all("figure.plot", old), all("figure.plot", now)];
  if (was.length && was.length === is.length) { // charts keep their zoom; words around them are replaced
    is.forEach((figure, place) => {
      const plot = plots.find((each) => each.figure === was[place]);
      plot?.update(JSON.parse(figure.querySelector("script").textContent));
    });
    const texts = [all("[data-part]", old), all("[data-part]", now)];
    texts[0].forEach((part, place) => { if (texts[1][place]) part.replaceWith(document.importNode(texts[1][place], true)); });
    return;
  }
  old.replaceChildren(...[...now.childNodes].map((node) => document.importNode(node, true)));
  for (const figure of all("figure.plot", old)) plots.push(new Plot(figure));
  redraw();
};

const follow = (place) => {
  const every = Number(place.dataset.every ?? 2000);
  let before = null;
  const ask = async () => {
    let next = every;
    if (document.hidden) { setTimeout(ask, every); return; }
    try {
      const answer = await fetch(place.dataset.live, { headers: { accept: "text/html" }, cache: "no-store" });
      const text = await answer.text();
      if (!answer.ok) throw new Error(answer.status);
      if (text !== before) {
        freshen(place, new DOMParser().parseFromString(text, "text/html").body);
      }
      before = text;
      place.dataset.asked = Number(place.dataset.asked ?? 0) + 1;
      delete place.dataset.lost;
      if (place.querySelector("[data-ended]")) return;
    } catch { place.dataset.lost = "true"; next = REST; }
    setTimeout(ask, next);
  };
  setTimeout(ask, every);
};
for (const place of all("[data-live]")) follow(place);
