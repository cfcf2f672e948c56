// Writes the Brotli form of a file next to it, which the service sends to browsers.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { brotliCompressSync, brotliDecompressSync } from "node:zlib";

const path = process.argv[2];
const packed = `${path}.br`;
const bytes = readFileSync(path);
// Another version of Node may pack the same bytes otherwise: a form that is right stays.
const isRight = existsSync(packed) && brotliDecompressSync(readFileSync(packed)).equals(bytes);
if (!isRight) writeFileSync(packed, brotliCompressSync(bytes)); // the highest quality is the default
