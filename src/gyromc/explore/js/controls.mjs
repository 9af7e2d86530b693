// The controls: menus, and a slider with a number field for every numerical setting.

import { SETTINGS, admitted, position, valueAt } from "./settings.mjs";

/** Build all controls; `changed(name, value, notice)` is called when the user sets one. */
export function build(changed) {
  for (const select of document.querySelectorAll("select[data-setting]")) {
    const name = select.dataset.setting;
    for (const [value, label] of Object.entries(SETTINGS[name].choices)) select.append(new Option(label, value));
    select.addEventListener("change", () => changed(name, select.value));
  }
  for (const place of document.querySelectorAll("[data-number]")) buildPair(place, changed);
}

function buildPair(place, changed) {
  const name = place.dataset.number;
  const { least, most, whole } = SETTINGS[name];
  const label = document.createElement("label");
  label.htmlFor = `${name}-number`;
  label.textContent = place.dataset.label;
  const slider = Object.assign(document.createElement("input"), { type: "range", id: `${name}-slider`, min: 0, max: 1000 });
  slider.setAttribute("aria-label", `${place.dataset.label}, slider`);
  const number = Object.assign(document.createElement("input"), { type: "number", id: `${name}-number`, min: least, max: most });
  number.step = whole ? "1" : "any";
  slider.addEventListener("input", () => changed(name, valueAt(name, Number(slider.value))));
  number.addEventListener("change", () => {
    const { value, notice } = admitted(name, number.value);
    number.value = value;
    changed(name, value, notice);
  });
  const row = document.createElement("div");
  row.className = "row";
  row.append(slider, number);
  place.append(label, row);
}

/** Make all controls show the settings, and hide those that do not apply. */
export function show(settings) {
  for (const select of document.querySelectorAll("select[data-setting]")) select.value = settings[select.dataset.setting];
  for (const place of document.querySelectorAll("[data-number]")) {
    const name = place.dataset.number;
    const [slider, number] = place.querySelectorAll("input");
    slider.value = position(name, settings[name]);
    slider.setAttribute("aria-valuetext", String(settings[name]));
    if (document.activeElement !== number) number.value = settings[name];
  }
  for (const place of document.querySelectorAll("[data-when]")) {
    const conditions = place.dataset.when.split(";").map((text) => text.split("="));
    place.hidden = !conditions.every(([name, values]) => values.split(",").includes(settings[name]));
  }
}

/** Disable the entries of the scheme menu that do not fit the dynamics; `misfit(scheme)` is a sentence or null. */
export function limitSchemes(misfit) {
  for (const option of document.querySelector("#scheme").options) option.disabled = misfit(option.value) !== null;
}
