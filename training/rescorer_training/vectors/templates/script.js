"use strict";
// Draw the words on a canvas; search, zoom and move. Labels are written only where they have room.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const canvas = byId("plot"), search = byId("search"), found = byId("found");
  const context = canvas.getContext("2d");
  const lower = data.words.map((word) => word.toLowerCase());
  const grouped = data.groups.some((name) => name);
  const view = { x: 0, y: 0, zoom: 1 };
  const MAX_ZOOM = 200, MARGIN = 0.92, LABEL = 12, HIT = 14;
  let points = data.points[document.querySelector("input[name=projection]:checked").value];
  let matches = new Set(), chosen = -1, waiting = false;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const scale = () => (Math.min(canvas.clientWidth, canvas.clientHeight) / 2) * MARGIN * view.zoom;
  const stretch = () => Math.min(canvas.clientWidth / canvas.clientHeight, 1.6);
  const wide = () => (canvas.clientWidth > canvas.clientHeight ? stretch() : 1);
  const toScreen = ([x, y]) => [
    canvas.clientWidth / 2 + (x - view.x) * scale() * wide(),
    canvas.clientHeight / 2 - (y - view.y) * scale(),
  ];
  const redraw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  };

  // One shape per group, so that groups can be told apart without colour.
  const SHAPES = [
    (c, x, y, r) => c.arc(x, y, r, 0, 7),
    (c, x, y, r) => c.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8),
    (c, x, y, r) => polygon(c, x, y, r * 1.3, 3, -Math.PI / 2),
    (c, x, y, r) => polygon(c, x, y, r * 1.3, 4, 0),
    (c, x, y, r) => polygon(c, x, y, r * 1.3, 3, Math.PI / 2),
    (c, x, y, r) => polygon(c, x, y, r * 1.15, 6, 0),
    (c, x, y, r) => polygon(c, x, y, r * 1.2, 5, -Math.PI / 2),
  ];
  function polygon(c, x, y, r, corners, turn) {
    for (let corner = 0; corner < corners; corner++) {
      const angle = turn + (2 * Math.PI * corner) / corners;
      c.lineTo(x + r * Math.cos(angle), y + r * Math.sin(angle));
    }
    c.closePath();
  }
  function shape(c, word, x, y, radius) {
    const group = data.groupOf[word];
    c.fillStyle = data.colours[group];
    c.beginPath();
    SHAPES[group](c, x, y, radius);
    c.fill();
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const places = points.map(toScreen);
    const inside = ([x, y]) => x > -20 && y > -20 && x < width + 20 && y < height + 20;
    const near = chosen < 0 ? [] : data.neighbours[chosen];
    const special = new Set([...matches, ...near, ...(chosen < 0 ? [] : [chosen])]);
    const radius = data.words.length > 600 && view.zoom < 4 ? 2.2 : 3.5;
    const visible = [...places.keys()].filter((word) => inside(places[word]));
    context.globalAlpha = special.size ? 0.3 : 0.85;
    for (const word of visible) shape(context, word, ...places[word], radius);
    context.globalAlpha = 1;
    context.strokeStyle = colour("--mark");
    for (const word of near) {
      context.beginPath();
      context.moveTo(...places[chosen]);
      context.lineTo(...places[word]);
      context.stroke();
    }
    for (const word of special) shape(context, word, ...places[word], 5);
    const order = [...(chosen < 0 ? [] : [chosen]), ...near, ...matches, ...visible];
    label(order.filter((word, place) => inside(places[word]) && (place < 2000 || special.has(word))), places, special);
  }

  function label(order, places, special) {
    const boxes = new Map(), seen = new Set();
    const cell = (x, y) => `${Math.floor(x / 80)},${Math.floor(y / 20)}`;
    const cells = (box) => {
      const keys = [];
      for (let x = box[0]; x < box[2] + 80; x += 80)
        for (let y = box[1]; y < box[3] + 20; y += 20) keys.push(cell(Math.min(x, box[2]), Math.min(y, box[3])));
      return keys;
    };
    const free = (box) =>
      cells(box).every((key) =>
        (boxes.get(key) ?? []).every((o) => box[0] >= o[2] || o[0] >= box[2] || box[1] >= o[3] || o[1] >= box[3]));
    let written = 0;
    for (const word of order) {
      if (seen.has(word)) continue;
      seen.add(word);
      const marked = special.has(word), [x, y] = places[word];
      context.font = `${marked ? "600 " : ""}${LABEL}px system-ui, sans-serif`;
      const width = context.measureText(data.words[word]).width;
      const tries = [[6, -3], [-6 - width, -3], [6, LABEL], [-6 - width, LABEL]].map(([dx, dy]) =>
        [x + dx - 1, y + dy - LABEL, x + dx + width + 1, y + dy + 2]);
      const fits = (place) => place[0] >= 0 && place[2] <= canvas.clientWidth && free(place);
      const box = tries.find(fits) ?? (word === chosen ? tries[0] : null);
      if (!box) continue;
      for (const key of cells(box)) boxes.set(key, [...(boxes.get(key) ?? []), box]);
      context.globalAlpha = special.size && !marked ? 0.35 : 1;
      context.fillStyle = word === chosen ? colour("--mark") : colour("--ink");
      context.fillText(data.words[word], box[0] + 1, box[3] - 3);
      written += 1;
    }
    context.globalAlpha = 1;
    canvas.dataset.labels = String(written);
  }

  function choose(word) {
    chosen = word;
    const panel = byId("neighbours");
    panel.replaceChildren();
    if (word >= 0) {
      const title = document.createElement("h2"), list = document.createElement("ol");
      title.textContent = data.words[word];
      data.neighbours[word].forEach((other, rank) => {
        const item = document.createElement("li"), button = document.createElement("button"), number = document.createElement("span");
        button.textContent = data.words[other];
        button.type = "button";
        button.addEventListener("click", () => { choose(other); moveTo(other); });
        number.textContent = ` ${data.cosines[word][rank].toFixed(2)}`;
        item.append(button, number);
        list.append(item);
      });
      panel.append(title, list);
    }
    redraw();
  }
  function moveTo(word) {
    [view.x, view.y] = points[word];
    view.zoom = Math.max(view.zoom, 3);
    redraw();
  }
  function zoomBy(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const before = [(x - canvas.clientWidth / 2) / (scale() * wide()), (canvas.clientHeight / 2 - y) / scale()];
    view.zoom = Math.min(Math.max(view.zoom * factor, 0.5), MAX_ZOOM);
    view.x += before[0] - (x - canvas.clientWidth / 2) / (scale() * wide());
    view.y += before[1] - (canvas.clientHeight / 2 - y) / scale();
    redraw();
  }
  function showAll() {
    Object.assign(view, { x: 0, y: 0, zoom: 1 });
    redraw();
  }

  search.addEventListener("input", () => {
    const text = search.value.trim().toLowerCase();
    matches = new Set(text ? [...lower.keys()].filter((word) => lower[word].includes(text)) : []);
    found.textContent = !text ? "" : matches.size === 1 ? "1 word" : `${matches.size} words`;
    if (!text) choose(-1);
    redraw();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !matches.size) return;
    const text = search.value.trim().toLowerCase();
    const best = [...matches].find((word) => lower[word] === text) ?? [...matches][0];
    choose(best);
    moveTo(best);
  });
  for (const option of document.querySelectorAll("input[name=projection]"))
    option.addEventListener("change", () => { points = data.points[option.value]; showAll(); });
  byId("in").addEventListener("click", () => zoomBy(1.5));
  byId("out").addEventListener("click", () => zoomBy(1 / 1.5));
  byId("reset").addEventListener("click", showAll);
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoomBy(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = 0.2 / view.zoom;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (moves[event.key]) { view.x += moves[event.key][0]; view.y += moves[event.key][1]; redraw(); }
    else if (event.key === "+" || event.key === "=") zoomBy(1.5);
    else if (event.key === "-") zoomBy(1 / 1.5);
    else return;
    event.preventDefault();
  });

  // One pointer moves, two zoom; a pointer that does not move chooses the nearest word.
  const pointers = new Map();
  let travelled = 0;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    if (pointers.size === 1) travelled = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const now = [event.offsetX, event.offsetY];
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const distance = (a) => Math.hypot(a[0] - other[0], a[1] - other[1]) || 1;
      zoomBy(distance(now) / distance(before), other[0], other[1]);
    } else {
      view.x -= (now[0] - before[0]) / (scale() * wide());
      view.y += (now[1] - before[1]) / scale();
      redraw();
    }
    travelled += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
    pointers.set(event.pointerId, now);
  });
  canvas.addEventListener("dragstart", (event) => event.preventDefault()); // of text that is selected around it
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointerup", (event) => {
    pointers.delete(event.pointerId);
    if (travelled > 6 || pointers.size) return;
    let best = -1, least = HIT;
    points.forEach((point, word) => {
      const [x, y] = toScreen(point), distance = Math.hypot(x - event.offsetX, y - event.offsetY);
      if (distance < least) [best, least] = [word, distance];
    });
    choose(best);
  });

  if (grouped)
    data.groups.forEach((name, group) => {
      const line = document.createElement("div"), mark = document.createElement("canvas");
      mark.width = mark.height = 16;
      const c = mark.getContext("2d");
      c.fillStyle = data.colours[group];
      c.beginPath();
      SHAPES[group](c, 8, 8, 5);
      c.fill();
      line.append(mark, name || "no group");
      byId("legend").append(line);
    });
  new ResizeObserver(redraw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  redraw();
})();
