// What the templates and htmx cannot do: the theme, the drawing of the map, copying, and the key that leads to the search.
"use strict";

document.documentElement.classList.add("scripted");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

document.getElementById("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  document.cookie = `theme=${theme}; path=/; max-age=31536000; samesite=strict`;
});

// The map: a cell a layer, coloured by the variant that wins it.

function cellsOf(data) {
  return data.winners.flatMap((row, down) =>
    row.map((winner, across) => ({ across, down, x: data.x.values[across], y: data.y.values[down], winner, layer: data.layers[down][across] })));
}

function ask(data, cell) {
  if (cell.layer) location.assign(`/?${new URLSearchParams({ layer: cell.layer, ...data.query })}`);
}

function nameOf(data, cell) {
  return cell.winner === null ? "nothing is predicted to run" : data.variants[cell.winner].name;
}

// The middle of each large patch of one colour gets its letter, for those who do not tell the colours apart.
function lettersOf(data) {
  const { winners } = data, seen = winners.map((row) => row.map(() => false)), letters = [];
  for (let down = 0; down < winners.length; down++) {
    for (let across = 0; across < winners[down].length; across++) {
      const winner = winners[down][across];
      if (winner === null || seen[down][across]) continue;
      const patch = [], next = [[down, across]];
      seen[down][across] = true;
      while (next.length) {
        const [y, x] = next.pop();
        patch.push([y, x]);
        for (const [ny, nx] of [[y - 1, x], [y + 1, x], [y, x - 1], [y, x + 1]]) {
          if (winners[ny]?.[nx] === winner && !seen[ny][nx]) { seen[ny][nx] = true; next.push([ny, nx]); }
        }
      }
      if (patch.length < 6) continue;
      const depthOf = ([y, x]) => {
        let reach = 0;
        while ([[y - reach, x], [y + reach, x], [y, x - reach], [y, x + reach]].every(([ny, nx]) => winners[ny]?.[nx] === winner)) reach++;
        return reach;
      };
      const [y, x] = patch.reduce((best, place) => (depthOf(place) > depthOf(best) ? place : best));
      letters.push({ x: data.x.values[x], y: data.y.values[y], letter: data.variants[winner].letter });
    }
  }
  return letters;
}

function tickValues(values, room) {
  const wanted = values.filter((value) => (value & (value - 1)) === 0 || value === values[0]);
  const step = Math.ceil(wanted.length / room);
  return wanted.filter((_, place) => place % step === 0);
}

function draw(figure, data) {
  const cells = cellsOf(data), own = cells.find((cell) => cell.x === data.x.at && cell.y === data.y.at);
  const width = Math.max(figure.clientWidth, 200), marginLeft = 52, marginBottom = 40;
  const side = (width - marginLeft - 8) / data.x.values.length;
  const height = Math.min(Math.max(side * data.y.values.length * 0.7, 260), 620) + marginBottom + 12;
  const svg = Plot.plot({
    className: "chart", width, height, marginLeft, marginBottom, marginTop: 12, marginRight: 8,
    x: { type: "band", domain: data.x.values, label: data.x.name, labelAnchor: "center", tickFormat: "d", tickSize: 3, ticks: tickValues(data.x.values, width / 44), padding: 0 },
    y: { type: "band", domain: data.y.values, label: data.y.name, labelAnchor: "center", tickFormat: "d", tickSize: 3, ticks: tickValues(data.y.values, height / 26), padding: 0, reverse: true },
    color: { type: "identity" },
    marks: [
      Plot.cell(cells.filter((cell) => cell.winner !== null), { x: "x", y: "y", inset: 0.25, fill: (cell) => `var(--c${data.variants[cell.winner].colour})` }),
      Plot.text(lettersOf(data), { x: "x", y: "y", text: "letter", fill: "var(--on-colour)", fontSize: 12, fontWeight: 650 }),
    ],
  });
  svg.setAttribute("aria-hidden", "true"); // the figure speaks for it
  figure.replaceChildren(svg);
  const across = svg.scale("x"), down = svg.scale("y");
  const ring = (id, cell) => {
    let rect = svg.querySelector(`#${id}`);
    if (!rect) {
      rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      for (const [name, value] of Object.entries({ id, fill: "none", "pointer-events": "none", rx: 2, stroke: "var(--ink)", "stroke-width": id === "own" ? 2.5 : 1.5 })) rect.setAttribute(name, value);
      svg.append(rect);
    }
    for (const [name, value] of Object.entries({ x: across.apply(cell.x) - 1, y: down.apply(cell.y) - 1, width: across.bandwidth + 2, height: down.bandwidth + 2 })) rect.setAttribute(name, value);
  };
  if (own) ring("own", own);
  let at = own ?? cells[0];
  const said = document.getElementById("map-cell");
  const move = (cell) => {
    at = cell;
    ring("cursor", cell);
    said.textContent = cell.layer ? `${cell.layer}: ${nameOf(data, cell)}` : "there is no such layer";
  };
  const cellAt = (event) => {
    const box = svg.getBoundingClientRect(), scale = width / box.width;
    const column = Math.floor(((event.clientX - box.left) * scale - marginLeft) / across.bandwidth);
    const top = down.apply(data.y.values[data.y.values.length - 1]);
    const row = data.y.values.length - 1 - Math.floor(((event.clientY - box.top) * scale - top) / down.bandwidth);
    return cells.find((cell) => cell.across === column && cell.down === row);
  };
  const tip = document.getElementById("map-tip");
  const hideTip = () => { tip.hidden = true; };
  svg.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (!cell) return hideTip();
    move(cell);
    tip.replaceChildren(...tipOf(data, cell));
    tip.hidden = false;
    beside(tip, figure.getBoundingClientRect(), event);
  });
  svg.addEventListener("pointerleave", hideTip);
  svg.addEventListener("click", (event) => { const cell = cellAt(event); if (cell) ask(data, cell); });
  figure.onkeydown = (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (event.key === "Enter") ask(data, at);
    if (!step) return;
    event.preventDefault();
    const next = cells.find((cell) => cell.across === at.across + step[0] && cell.down === at.down + step[1]);
    if (next) move(next);
  };
}

// What the tip beside the pointer says: the layer, and who wins it.
function tipOf(data, cell) {
  const name = document.createElement("code"), layer = document.createElement("span");
  name.textContent = nameOf(data, cell);
  layer.textContent = cell.layer ? `${cell.layer}, ${data.x.name} ${cell.x}, ${data.y.name} ${cell.y}` : "there is no such layer";
  return [name, layer];
}

// To the right of the pointer and below it; on the other side where there is no room.
function beside(tip, frame, event) {
  const x = event.clientX - frame.left, y = event.clientY - frame.top, away = 14;
  const left = x + away + tip.offsetWidth > frame.width ? x - away - tip.offsetWidth : x + away;
  const top = y + away + tip.offsetHeight > frame.height ? y - away - tip.offsetHeight : y + away;
  tip.style.translate = `${Math.max(left, 0)}px ${Math.max(top, 0)}px`;
}

function drawMap(isAnew) {
  const figure = document.getElementById("map");
  if (figure && (isAnew || !figure.firstChild)) draw(figure, JSON.parse(figure.dataset.map));
}

// A refused value is marked where it was typed, and the mark goes with the refusal.

function markRefused() {
  const problem = document.getElementById("problem"), field = problem?.dataset.field;
  for (const input of document.querySelectorAll("#ask input:not([type=radio])")) {
    if (field && input.name === field) {
      input.setAttribute("aria-invalid", "true");
      input.setAttribute("aria-errormessage", "problem");
    } else {
      input.removeAttribute("aria-invalid");
      input.removeAttribute("aria-errormessage");
    }
  }
}

// Where the browser lets a page write there, programs, links and calls can be copied.

function offerCopies() {
  if (!navigator.clipboard) return;
  for (const button of document.querySelectorAll("button[data-copy]")) button.hidden = false;
}
document.body.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  const announce = document.getElementById("announce");
  try {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
    announce.textContent = `${button.dataset.what ?? "The text"} was copied`;
  } catch {
    button.textContent = "Not copied";
    announce.textContent = "The browser did not let the page copy it";
  }
  setTimeout(() => { button.textContent = button.dataset.said ?? "Copy"; }, 2000);
});

// The key / leads to the search, unless something is being typed.

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  event.preventDefault();
  document.getElementById("find").focus();
});

// A service that does not answer is said so, until it does.

function noteAnswer(isAnswered) {
  document.getElementById("offline").hidden = isAnswered;
}
document.body.addEventListener("htmx:sendError", () => noteAnswer(false));
document.body.addEventListener("htmx:timeout", () => noteAnswer(false));
document.body.addEventListener("htmx:afterRequest", (event) => { if (event.detail.xhr?.status) noteAnswer(true); });

// htmx loads the whole page first, then every part that it puts in.

document.body.addEventListener("htmx:load", () => { drawMap(false); markRefused(); offerCopies(); });
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawMap(true); } });

// A model that is chosen or dropped is sent as it is; what is asked of its plan stands in the form beside it.

const drop = document.getElementById("drop");
if (drop) {
  const form = document.getElementById("ask"), chosen = document.getElementById("model");
  let latest = 0;
  const plan = async () => {
    const file = chosen.files[0], asked = new URLSearchParams(new FormData(form)), turn = ++latest;
    asked.set("name", file.name);
    form.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(`/plan?${asked}`, { method: "POST", body: file, headers: { "content-type": "application/onnx", "hx-request": "true" } });
      const text = await answer.text();
      if (turn !== latest) return;
      const part = new DOMParser().parseFromString(text, "text/html").getElementById("answer");
      if (part) document.getElementById("answer").replaceWith(part);
      else document.getElementById("answer").textContent = text;
      document.getElementById("announce").textContent = answer.ok ? `The plan of ${file.name} is there` : `${file.name} was refused`;
      noteAnswer(true);
    } catch {
      noteAnswer(false);
    } finally {
      if (turn === latest) form.removeAttribute("aria-busy");
    }
  };
  // With a file chosen, whatever changes beside it asks again for its plan; choosing a network lets go of the file.
  document.addEventListener("change", (event) => {
    if (!form.contains(event.target)) return;
    if (event.target.name === "name") chosen.value = "";
    if (!chosen.files.length) return event.target === chosen ? event.stopPropagation() : undefined;
    event.stopPropagation();
    plan();
  }, true);
  form.addEventListener("submit", (event) => { if (chosen.files.length) { event.preventDefault(); event.stopImmediatePropagation(); plan(); } }, true);
  for (const name of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", name === "dragover");
      if (name === "drop" && event.dataTransfer.files.length) { chosen.files = event.dataTransfer.files; plan(); }
    });
  }
  drop.hidden = false;
}
