/** Histograms: sampled tables that list the common items, and perhaps a count sketch of all. */

import { big, ceil, max, range, zeros } from "../arithmetic.js";
import { sha256, u32, unhex } from "../bytes.js";
import { maxDevices, primeAbove } from "../committee.js";
import { domainOf } from "../domains.js";
import { draw, halves, hashFunction, scale, toFloat } from "../hashing.js";
import { DEFAULT_EVIDENCE, sample, tableFormat } from "./table.js";

/** @import { Encoder, Held } from "../encode.js" */

/** Return the sketch of all items: in each row a cell of each, with a random sign. @type {(plan:
 * any, p: number, held: Held[]) => Promise<number[]>} */
async function sketch({ question, rows, width, seed, location_seed: locationSeed }, p, held) {
  const { chunks } = domainOf(question.domain);
  const locations = await hashFunction(unhex(locationSeed), "count places", chunks, rows);
  const signs = await hashFunction(unhex(seed), "count signs", chunks, 1);
  const cells = zeros(rows * width);
  for (const { key, count } of held) {
    const [, sign] = signs(key);
    locations(key).slice(1).forEach((place, row) => {
      const cell = row * width + scale(halves(place)[0], width);
      const isNegative = (sign >> big(row)) & 1n;
      cells[cell] = (cells[cell] + (isNegative ? p - (count % p) : count)) % p;
    });
  }
  return cells;
}

/** @type {Encoder} */
export function approximateHistogram(plan) {
  const { question, terms, cells, tables, rows, width, t, seed } = plan;
  const most = question.contribution;
  const units = t >= most ? most : most * ceil(t);
  const p = primeAbove(terms, maxDevices(terms) * max(units, 2 * most));
  const format = tableFormat(p, domainOf(question.domain), cells, DEFAULT_EVIDENCE);
  return {
    p, length: tables * format.length + rows * width, showsOneDevice: rows > 0,
    leastCount: question.rule === "theorem" ? 1 : question.threshold,
    async encode(held, random) {
      const drawn = await draw(random, held.length * tables);
      const parts = range(tables).map(async (number) => {
        const table = await format.make(sha256(unhex(seed), u32(number)));
        held.forEach(({ key, count }, i) =>
          table.insert(key, sample(t, most, count, toFloat(drawn[i * tables + number]))));
        return table.elements;
      });
      const sketched = rows ? await sketch(plan, p, held) : [];
      return [...(await Promise.all(parts)).flat(), ...sketched];
    },
  };
}
