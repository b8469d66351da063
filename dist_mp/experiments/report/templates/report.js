"use strict";
(() => {
  document.documentElement.classList.remove("static");

  // Tables: a click on a column's name sorts by it; values that are missing stay last.
  const compare = (a, b) => {
    if ("sort" in a.dataset && "sort" in b.dataset) return Number(a.dataset.sort) - Number(b.dataset.sort);
    return a.textContent.trim().localeCompare(b.textContent.trim(), "en", { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        const body = table.tBodies[0];
        const missing = (row) => row.cells[column].dataset.sort === "";
        const rows = [...body.rows].sort((r, s) => {
          if (missing(r) || missing(s)) return missing(r) - missing(s);
          const order = compare(r.cells[column], s.cells[column]);
          return descending ? -order : order;
        });
        body.append(...rows);
      });
    });
  }

  // Runs can be taken out of the charts.
  const off = new Set();
  for (const box of document.querySelectorAll("input[data-toggle]")) {
    box.checked = true;
    box.addEventListener("change", () => {
      const run = Number(box.dataset.toggle);
      if (box.checked) off.delete(run); else off.add(run);
      for (const part of document.querySelectorAll(`svg.chart .run[data-run="${run}"]`)) {
        part.classList.toggle("off", !box.checked);
      }
    });
  }

  // Charts: the numbers under the pointer, or under a line that the arrow keys move.
  const shown = (value) => {
    if (value === null) return "not finite";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
    return value.toLocaleString("en", { maximumSignificantDigits: 5 });
  };
  for (const figure of document.querySelectorAll("figure")) {
    const svg = figure.querySelector("svg.chart");
    const data = JSON.parse(figure.querySelector("script").textContent);
    const out = figure.querySelector(".readout");
    const cursor = svg.querySelector(".cursor");
    const places = () => [...new Set(data.curves.filter((c) => !off.has(c.run)).flatMap((c) => c.px))].sort((a, b) => a - b);
    let at = null;
    const show = (place) => {
      at = place;
      cursor.setAttribute("x1", place);
      cursor.setAttribute("x2", place);
      cursor.setAttribute("visibility", "visible");
      const words = [];
      let x = null;
      for (const curve of data.curves) {
        if (off.has(curve.run)) continue;
        let best = 0;
        curve.px.forEach((px, i) => { if (Math.abs(px - place) < Math.abs(curve.px[best] - place)) best = i; });
        if (Math.abs(curve.px[best] - place) > 4) continue;
        if (x === null) x = curve.x[best];
        const range = curve.low && curve.low[best] !== null && curve.low[best] !== curve.high[best]
          ? ` (${shown(curve.low[best])} to ${shown(curve.high[best])})` : "";
        words.push(`${data.curves.length > 1 ? curve.label + " " : ""}${shown(curve.mean[best])}${range}`);
      }
      out.textContent = x === null ? "\u00a0" : `${data.x} ${shown(x)}: ${words.join(", ")}`;
    };
    const nearest = (target) => {
      const all = places();
      return all.length ? all.reduce((a, b) => (Math.abs(b - target) < Math.abs(a - target) ? b : a)) : null;
    };
    const hide = () => { cursor.setAttribute("visibility", "hidden"); out.textContent = "\u00a0"; at = null; };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const place = nearest(((event.clientX - box.left) / box.width) * data.width);
      if (place !== null) show(place);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const all = places();
      if (!all.length) return;
      const i = at === null ? -1 : all.indexOf(nearest(at));
      const to = { ArrowRight: Math.min(i + 1, all.length - 1), ArrowLeft: Math.max(i - 1, 0), Home: 0, End: all.length - 1 }[event.key];
      if (event.key === "Escape") hide();
      if (to === undefined) return;
      event.preventDefault();
      show(all[to]);
    });
  }
})();
