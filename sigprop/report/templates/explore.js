"use strict";
// The controls of both settings, and one request at a time for what they predict.

const architectures = JSON.parse(document.getElementById("architectures").textContent);
const LABELS = {
  architecture: "architecture", depth: "depth", width: "width", norm: "norm placement", activation: "activation",
  dropout: "dropout", recipe: "recipe", skip: "skip scale ×", branch: "branch scale ×", query_key: "query/key scale ×",
};
const FIRST = Object.keys(architectures)[0];
const labelOf = (key) => LABELS[key] || `${key.replaceAll("_", " ")} ×`;
const byId = (name) => document.getElementById(name);
const chosen = { a: null, b: null };

function element(kind, properties, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

function allows(control, value) {
  return control.names ? control.names.includes(value) : value >= control.low && value <= control.high;
}

// The same settings in another architecture: what it does not have, or starts elsewhere with, is taken from its start.
function moved(values, name) {
  const { controls, start } = architectures[name];
  const usual = architectures.encoder.start;
  const found = { architecture: name };
  for (const key of Object.keys(controls)) {
    const keep = values && key in values && allows(controls[key], values[key]) && start[key] === usual[key];
    found[key] = keep ? values[key] : start[key];
  }
  return found;
}

function draw(side) {
  const values = chosen[side];
  const { controls } = architectures[values.architecture];
  const rows = [select(side, "architecture", Object.keys(architectures))];
  const known = Object.keys(LABELS).filter((name) => name in controls);
  for (const key of [...known, ...Object.keys(controls).filter((name) => !(name in LABELS))]) {
    const control = controls[key];
    rows.push(control.names ? select(side, key, control.names) : slider(side, key, control));
  }
  document.querySelector(`#${side} .controls`).replaceChildren(...rows);
}

function select(side, key, names) {
  const list = element("select", { id: `${side}.${key}` }, ...names.map((name) => element("option", { value: name }, name)));
  list.value = chosen[side][key];
  list.addEventListener("change", () => {
    if (key === "architecture") {
      chosen[side] = moved(chosen[side], list.value);
      draw(side);
      byId(`${side}.architecture`).focus();
    } else {
      chosen[side][key] = list.value;
    }
    ask();
  });
  return element("label", { className: "control" }, labelOf(key), list);
}

function slider(side, key, control) {
  const shown = element("output", {}, String(chosen[side][key]));
  const range = element("input", { type: "range", id: `${side}.${key}`, min: control.low, max: control.high, step: control.step });
  range.value = chosen[side][key];
  range.addEventListener("input", () => {
    chosen[side][key] = Number(range.value);
    shown.textContent = range.value;
    ask();
  });
  return element("label", { className: "control" }, labelOf(key), range, shown);
}

function query() {
  const found = new URLSearchParams();
  for (const side of byId("compare").checked ? ["a", "b"] : ["a"]) {
    for (const [key, value] of Object.entries(chosen[side])) found.set(`${side}.${key}`, value);
  }
  return found.toString();
}

// While one answer is awaited the newest question waits; those between are never sent.
let waiting = null;
let asking = false;

async function ask() {
  waiting = query();
  if (asking) return;
  asking = true;
  while (waiting !== null) {
    const asked = waiting;
    waiting = null;
    document.body.classList.add("busy");
    try {
      const began = performance.now();
      const response = await fetch(`/view?${asked}`);
      const found = await response.json();
      if (found.error) throw new Error(found.error);
      show(found, performance.now() - began);
      history.replaceState(null, "", `/?${asked}`);
    } catch (error) {
      byId("error").textContent = error instanceof TypeError ? "sigprop explore does not answer: is it still running?" : error.message;
    }
    document.body.classList.remove("busy");
  }
  asking = false;
}

// Charts are SVG that the server made of numbers; every text goes in as text.
function show(found, milliseconds) {
  byId("error").textContent = "";
  byId("charts").innerHTML = found.charts.join("");
  byId("planes").innerHTML = Object.values(found.planes).join("");
  byId("python").textContent = found.python;
  byId("time").textContent = `answered in ${Math.round(milliseconds)} ms`;
  byId("status").textContent = [...new Set(Object.values(found.status))].filter(Boolean).join("; ");
  for (const [side, sentences] of Object.entries(found.sentences)) {
    const lines = sentences.map(([severity, text]) => element("p", { className: `sentence ${severity}` }, text));
    document.querySelector(`#${side} .sentences`).replaceChildren(...lines);
  }
}

function start() {
  const given = new URLSearchParams(location.search);
  for (const side of ["a", "b"]) {
    const name = given.get(`${side}.architecture`) || FIRST;
    chosen[side] = moved(null, name in architectures ? name : FIRST);
    for (const [key, control] of Object.entries(architectures[chosen[side].architecture].controls)) {
      const text = given.get(`${side}.${key}`);
      const value = control.names ? text : Number(text);
      if (text !== null && allows(control, value)) chosen[side][key] = value;
    }
    draw(side);
  }
  compare([...given.keys()].some((key) => key.startsWith("b.")));
  byId("compare").addEventListener("change", (event) => {
    if (event.target.checked) {
      chosen.b = { ...chosen.a };
      draw("b");
    }
    compare(event.target.checked);
  });
  byId("copy").addEventListener("click", () => navigator.clipboard.writeText(byId("python").textContent));
}

function compare(wanted) {
  byId("compare").checked = wanted;
  byId("b").hidden = !wanted;
  ask();
}

start();
