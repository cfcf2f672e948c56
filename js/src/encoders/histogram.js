/** Histograms: sampled tables that list the common items, and perhaps a count sketch of all. */

import { big, ceil, max, range, zeros } from "../arithmetic.js";
import { sha256, u32, unhex } from "../bytes.js";
import { maxDevices, primeAbove } from "../committee.js";
import { domainOf } from "../domains.js";
import { drawWords, halves, hashFamily, scale, toFloat } from "../hashing.js";
import { DEFAULT_EVIDENCE, cellFormat, makeTable, sample, tableLength } from "./table.js";

/** @import { Encoder, Held } from "../encode.js" */

/** Return the sketch of all items: in each row a cell of each, with a random sign. @type {(plan:
 * any, p: number, chunks: number, held: Held[]) => Promise<number[]>} */
async function sketch({ rows, width, seed, location_seed: locationSeed }, p, chunks, held) {
  const locations = await hashFamily(unhex(locationSeed), "count places", chunks, rows);
  const signs = await hashFamily(unhex(seed), "count signs", chunks, 1);
  const cells = zeros(rows * width);
  for (const { key, count } of held) {
    const [sign] = signs.hash(key);
    locations.hash(key).forEach((place, row) => {
      const cell = row * width + scale(halves(place)[0], width);
      const isNegative = (sign >> big(row)) & 1n;
      cells[cell] = (cells[cell] + (isNegative ? p - (count % p) : count)) % p;
    });
  }
  return cells;
}

/** @type {Encoder} */
export const approximateHistogram = {
  showsOneDevice: ({ rows }) => rows > 0,
  leastCount: ({ question }) => (question.rule === "theorem" ? 1 : question.threshold),
  shape({ question, terms, cells, tables, rows, width, t }) {
    const most = question.contribution;
    const units = t >= most ? most : most * ceil(t);
    const p = primeAbove(terms, maxDevices(terms) * max(units, 2 * most));
    const cell = cellFormat(p, domainOf(question.domain), cells, DEFAULT_EVIDENCE);
    return { p, length: tables * tableLength(cell, cells) + rows * width, cell };
  },
  async encode(plan, held, random) {
    const { p, cell } = this.shape(plan);
    const { question, cells, tables, rows, t, seed } = plan;
    const drawn = (await drawWords(random, held.length * tables)).map(toFloat);
    const parts = range(tables).map(async (number) => {
      const table = await makeTable(cell, cells, await sha256(unhex(seed), u32(number)));
      held.forEach(({ key, count }, i) =>
        table.insert(key, sample(t, question.contribution, count, drawn[i * tables + number])));
      return table.elements;
    });
    const sketched = rows ? [sketch(plan, p, cell.chunks, held)] : [];
    return (await Promise.all([...parts, ...sketched])).flat();
  },
};
