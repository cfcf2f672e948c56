/** Journal of a device in a folder, for Node: a file for each line, which only its owner reads. */

import { randomUUID } from "node:crypto";
import { link, mkdir, open, readFile, readdir, rename, unlink } from "node:fs/promises";
import { join } from "node:path";

import { journalIn } from "./journal.js";
import { readJson } from "./plan.js";

const nameOf = (/** @type {number} */ number) => `${String(number).padStart(8, "0")}.json`;

/** @param {string} path @param {string} flags @param {string} [text] to write */
async function sync(path, flags, text) {
  const file = await open(path, flags, 0o600);
  try {
    if (text !== undefined) await file.writeFile(text);
    await file.sync();
  } finally {
    await file.close();
  }
}

/**
 * Return the journal in a folder, which is made if it is missing. Never copy or restore the folder:
 * an older copy would forget what the device sent. @type {(folder: string) =>
 * import("./journal.js").Journal} */
export function folderJournal(folder) {
  const read = async () => {
    await mkdir(folder, { mode: 0o700, recursive: true });
    const names = (await readdir(folder)).filter((name) => /^\d+\.json$/.test(name)).sort();
    if (names.some((name, number) => name !== nameOf(number))) throw new Error("a file is missing");
    const texts = await Promise.all(names.map((name) => readFile(join(folder, name), "utf8")));
    return texts.map(readJson); // an error would quote a text, and its secret
  };
  /** @param {number} number @param {object} line @param {typeof rename} place the written file */
  const write = async (number, line, place) => {
    const part = join(folder, `${randomUUID()}.part`);
    try {
      await sync(part, "wx", JSON.stringify(line));
      await place(part, join(folder, nameOf(number)));
    } catch (error) {
      if (/** @type {NodeJS.ErrnoException} */ (error).code === "EEXIST") return false;
      throw error;
    } finally {
      await unlink(part).catch(() => {});
    }
    await sync(folder, "r");
    return true;
  };
  return journalIn({
    update: async (change) => {
      for (;;) {
        const lines = await read();
        const made = change(lines);
        // One process only can make a link, and the others read again.
        const place = made?.[0] === lines.length ? link : rename;
        if (!made || (await write(...made, place))) return;
      }
    },
    alone: (task) => task(),
  });
}
