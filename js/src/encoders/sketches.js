/** Histograms: count sketches of all items, with sampled tables that list the common ones. */

import { sha256, u32, unhex } from "../bytes.js";
import { domainOf } from "../domains.js";
import { RefusedError } from "../errors.js";
import { halves, hashFamily, range, scale, shift } from "../hashing.js";
import { maxDevices, primeAbove } from "../moduli.js";
import { DEFAULT_EVIDENCE, cellFormat, makeTable, sample, tableLength } from "./table.js";

/** @typedef {import("../encode.js").Encoder} Encoder */
/** @typedef {import("../encode.js").Held} Held */

/**
 * Return the sketch of all items: in each row one cell of each, with a sign if there is a seed.
 *
 * @param {number} p @param {number} rows @param {number} width @param {number} chunks
 * @param {Held[]} held @param {string} locationSeed @param {string} [signSeed]
 */
async function sketch(p, rows, width, chunks, held, locationSeed, signSeed) {
  const locations = await hashFamily(unhex(locationSeed), "count places", chunks, rows);
  const signs = signSeed ? await hashFamily(unhex(signSeed), "count signs", chunks, 1) : null;
  const cells = new Uint32Array(rows * width);
  for (const { key, count } of held) {
    const word = signs ? signs.hash(key)[0] : [0, 0, 0, 0];
    locations.hash(key).forEach((place, row) => {
      const cell = row * width + scale(halves(place)[0], width);
      cells[cell] = (cells[cell] + (shift(word, row)[0] % 2 ? p - (count % p) : count)) % p;
    });
  }
  return [...cells];
}

/** @type {Encoder} */
export const approximateHistogram = {
  showsOneDevice: (plan) => plan.rows > 0,
  leastCount: ({ question }) => (question.rule === "theorem" ? 1 : question.threshold),
  shape({ question, terms, cells, tables, rows, width, t }) {
    const most = question.contribution;
    const units = t >= most ? most : most * Math.ceil(t);
    const p = primeAbove(terms, maxDevices(terms) * Math.max(units, 2 * most));
    const cell = cellFormat(p, domainOf(question.domain), cells, DEFAULT_EVIDENCE);
    return { p, length: tables * tableLength(cell, cells) + rows * width, cell };
  },
  async encode(plan, held, chance) {
    const { p, cell } = this.shape(plan);
    const { question, cells, tables, rows, width, t, seed, location_seed: locationSeed } = plan;
    const random = await chance.floats(held.length * tables);
    const parts = range(tables).map(async (number) => {
      const table = await makeTable(cell, cells, await sha256(unhex(seed), u32(number)));
      held.forEach(({ key, count }, i) => {
        const units = sample(t, question.contribution, count, random[i * tables + number]);
        if (units) table.insert(key, units);
      });
      return [...table.elements];
    });
    const sketched = rows ? sketch(p, rows, width, cell.chunks, held, locationSeed, seed) : [];
    return (await Promise.all([...parts, sketched])).flat();
  },
};

/** @type {Encoder} a sketch alone: `count-median`, or with signs `count-sketch` */
export const frequencySketch = {
  showsOneDevice: () => true,
  shape({ mechanism, question, release, terms, width }) {
    if (release) throw withNoise(mechanism, "leave out epsilon");
    const signs = mechanism === "count-sketch" ? 2 : 1;
    const p = primeAbove(terms, signs * maxDevices(terms) * question.contribution);
    return { p, length: question.rows * width };
  },
  async encode(plan, held) {
    const { mechanism, question, width, seed } = plan;
    const { chunks } = domainOf(question.domain);
    const signSeed = mechanism === "count-sketch" ? seed : undefined;
    return sketch(this.shape(plan).p, question.rows, width, chunks, held, seed, signSeed);
  },
};

/** @param {string} mechanism @param {string} advice @returns {RefusedError} */
export function withNoise(mechanism, advice) {
  const reason = `asks by ${mechanism} for noise, which a device in JavaScript does not make`;
  return new RefusedError("epsilon", `${reason}: ${advice}, or run a device in Python`);
}
