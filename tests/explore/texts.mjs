// Everything the page says in words for some settings: prints a list of texts for each.
// Usage: node texts.mjs FOLDER_OF_THE_PAGE '[{"target": "gaussian", …}, …]' STEPS

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [, , folder, asked, steps] = process.argv;
const load = (name) => import(pathToFileURL(`${folder}/js/${name}.mjs`).href);
const [{ World }, words, { initial }, { rangeOf }] = await Promise.all(["world", "words", "settings", "charts"].map(load));
const world = new World(JSON.parse(readFileSync(`${folder}/data/logistic.json`, "utf8")));

function texts(settings) {
  world.configure({ ...initial(), chains: 3, ...settings });
  while (world.thinking) if (world.thinking.next().done) world.thinking = null;
  if (!world.problem) while (world.t < Number(steps)) world.advance();
  const rows = world.problem ? [] : words.rows(world).flatMap(([name, cells]) => [name, ...cells]);
  const axes = Object.values(world.sides).flatMap(({ found }) => found.curve.map(({ eta }) => String(eta)));
  const bands = world.history.flatMap((entry) => world.band("yours", entry) ?? []);
  const headline = words.headline(world).map(([text]) => text).join("");
  const range = rangeOf(bands, 1);
  return { headline, cells: [words.price(world), words.title(world.settings), ...rows], axes, range: range.map(String) };
}

console.log(JSON.stringify(JSON.parse(asked).map(texts)));
