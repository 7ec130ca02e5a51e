"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  };

  // Charts: values under the pointer, or by the arrow keys.
  const tip = document.querySelector(".tip");

  function say(told, k) {
    const head = document.createElement("b");
    head.textContent = told.at[k];
    tip.replaceChildren(head);
    for (const s of told.series) {
      if (s.value[k] === null) continue;
      const row = document.createElement("div");
      const dot = document.createElement("i");
      dot.className = "s" + s.colour;
      row.append(dot, s.name + ": " + s.value[k]);
      tip.append(row);
    }
  }

  function place(box, svg, x) {
    tip.hidden = false;
    const left = box.left + (x / svg.viewBox.baseVal.width) * box.width;
    const right = left + 14 + tip.offsetWidth > document.documentElement.clientWidth;
    tip.style.left = Math.max(4, right ? left - 14 - tip.offsetWidth : left + 14) + window.scrollX + "px";
    tip.style.top = box.top + window.scrollY + 8 + "px";
  }

  for (const figure of document.querySelectorAll(".chart")) {
    const told = JSON.parse(figure.dataset.hover);
    figure.querySelectorAll("svg").forEach((svg, drawing) => hovering(svg, told, told.x[drawing]));
  }

  function hovering(svg, told, places) {
    const cross = svg.querySelector(".cross");
    let at = -1;
    const show = (k) => {
      at = Math.min(Math.max(k, 0), places.length - 1);
      cross.setAttribute("x1", places[at]);
      cross.setAttribute("x2", places[at]);
      cross.style.visibility = "visible";
      say(told, at);
      place(svg.getBoundingClientRect(), svg, places[at]);
    };
    const hide = () => {
      tip.hidden = true;
      cross.style.visibility = "hidden";
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      let best = 0;
      places.forEach((v, k) => { if (Math.abs(v - x) < Math.abs(places[best] - x)) best = k; });
      show(best);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (move === undefined) return;
      event.preventDefault();
      show(at + move);
    });
  }

  // The network: nodes on a circle, node 0 on top, then clockwise.
  const SIZE = 460, RADIUS = 195, MANY = 400;

  function circle(n) {
    return Array.from({ length: n }, (_, i) => {
      const angle = Math.PI / 2 - (2 * Math.PI * i) / n;
      return [SIZE / 2 + RADIUS * Math.cos(angle), SIZE / 2 - RADIUS * Math.sin(angle)];
    });
  }

  // Bends nearer to the centre the further the hop, so that hops of different length stay apart.
  function bend(a, b) {
    const m = [(a[0] + b[0] - SIZE) / 2 / RADIUS, (a[1] + b[1] - SIZE) / 2 / RADIUS];
    const r = Math.hypot(m[0], m[1]);
    const angle = 2 * Math.acos(Math.min(r, 1));
    const inward = (0.4 * r + 0.6 * (1 - Math.sqrt(angle / Math.PI))) / Math.max(r, 1e-9);
    return [SIZE / 2 + RADIUS * inward * m[0], SIZE / 2 + RADIUS * inward * m[1]];
  }

  function draw(section) {
    const told = JSON.parse(section.querySelector('script[type="application/json"]').textContent);
    const svg = section.querySelector(".circle"), slider = section.querySelector("input");
    const places = circle(told.nodes), dots = [], size = Math.min(7, 230 / told.nodes + 1.5);
    svg.setAttribute("viewBox", `0 0 ${SIZE} ${SIZE}`);
    const links = make("g", {}, svg);
    places.forEach(([x, y], i) => {
      const dot = make("circle", { class: "node", cx: x, cy: y, r: size }, svg);
      dot.addEventListener("pointerenter", () => only(i));
      dot.addEventListener("pointerleave", () => only(-1));
      dots.push(dot);
      if (i % Math.ceil(told.nodes / 64)) return;
      const out = 1 + 21 / RADIUS;
      const text = make("text", { x: SIZE / 2 + (x - SIZE / 2) * out, y: SIZE / 2 + (y - SIZE / 2) * out + 4 }, svg);
      text.textContent = i;
    });
    const only = (i) => {
      for (const link of links.children) {
        link.classList.toggle("quiet", i >= 0 && +link.dataset.from !== i && +link.dataset.to !== i);
      }
    };
    const weights = weighing(section.querySelector(".weights svg"), told);

    function step(s) {
      const pairs = told.links[told.phase[s]], lost = new Set(told.lost[s] || []), absent = new Set(told.absent[s] || []);
      const many = pairs.length / 2 > MANY;
      links.replaceChildren();
      for (let e = 0; e < pairs.length / 2; e++) arrow(pairs[2 * e], pairs[2 * e + 1], lost.has(e), many);
      dots.forEach((dot, i) => {
        dot.classList.toggle("absent", absent.has(i));
        dot.setAttribute("r", size * Math.sqrt(told.weights && !absent.has(i) ? Math.max(told.weights[s][i], 0.05) : 1));
      });
      weights(s);
      const k = told.steps[s], count = pairs.length / 2;
      section.querySelector(".said").textContent =
        `step ${k.toLocaleString("en")}: ${count} messages` + (lost.size ? `, ${lost.size} lost` : "");
      slider.setAttribute("aria-valuetext", "step " + k);
      section.querySelectorAll(".cursor").forEach((cursor) => point(cursor, k));
    }

    function point(cursor, k) {
      const left = +cursor.dataset.left, right = +cursor.dataset.right, text = cursor.querySelector("text");
      const x = left + k * cursor.dataset.unit;
      text.textContent = "step " + k.toLocaleString("en");
      const half = 3.7 * text.textContent.length;
      text.setAttribute("x", Math.min(Math.max(x, left + half), right - half) - x);
      cursor.setAttribute("transform", `translate(${x} 0)`);
      cursor.style.visibility = "visible";
    }

    function arrow(i, j, isLost, many) {
      const a = places[i], b = places[j], c = bend(a, b);
      const along = [b[0] - c[0], b[1] - c[1]], length = Math.hypot(...along) || 1;
      const u = [along[0] / length, along[1] / length];
      const end = [b[0] - u[0] * (size + 2), b[1] - u[1] * (size + 2)];
      const group = make("g", {}, links);
      group.dataset.from = i;
      group.dataset.to = j;
      const wide = many ? 0.4 : 1.3;
      make("path", { class: "link" + (isLost ? " lost" : ""), "stroke-width": wide, d: `M${a} Q${c} ${end}` }, group);
      if (many || isLost) return;
      const h = 6, base = [end[0] - u[0] * h, end[1] - u[1] * h], side = [-u[1] * h * 0.45, u[0] * h * 0.45];
      const corners = [end, [base[0] + side[0], base[1] + side[1]], [base[0] - side[0], base[1] - side[1]]];
      make("polygon", { class: "head", points: corners.join(" ") }, group);
    }

    slider.addEventListener("input", () => step(+slider.value));
    play(section.querySelector("button"), slider, step);
    step(0);
  }

  // Push-sum weights as bars, on one scale for all steps.
  function weighing(svg, told) {
    if (!svg) return () => {};
    const width = 480, height = 150, base = height - 18, left = 40;
    const most = Math.max(...told.weights.map((row) => Math.max(...row)));
    const y = (v) => base - (v / most) * (base - 10);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const pitch = (width - left - 14) / told.nodes;
    const bars = told.weights[0].map((_, i) => make("rect", { x: left + i * pitch, width: pitch * 0.75 }, svg));
    make("line", { x1: left, x2: width - 14, y1: y(1), y2: y(1) }, svg);
    for (const v of [1, most]) {
      const text = make("text", { x: left - 7, y: y(v) + 4, "text-anchor": "end" }, svg);
      text.textContent = +v.toPrecision(2);
    }
    return (s) => bars.forEach((bar, i) => {
      bar.setAttribute("y", y(told.weights[s][i]));
      bar.setAttribute("height", base - y(told.weights[s][i]));
    });
  }

  function play(button, slider, step) {
    let timer = null;
    const stop = () => {
      clearInterval(timer);
      timer = null;
      button.textContent = "▶";
      button.setAttribute("aria-label", "Play");
    };
    button.addEventListener("click", () => {
      if (timer !== null) return stop();
      button.textContent = "❚❚";
      button.setAttribute("aria-label", "Pause");
      timer = setInterval(() => {
        slider.value = (+slider.value + 1) % (+slider.max + 1);
        step(+slider.value);
      }, 350);
    });
  }

  document.querySelectorAll(".network").forEach(draw);
})();
