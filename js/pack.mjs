// Writes the Brotli form of a file next to it, which the service sends to browsers.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { brotliCompressSync, brotliDecompressSync, constants } from "node:zlib";

const path = process.argv[2];
const packed = `${path}.br`;
const bytes = readFileSync(path);
// The highest quality is the default. A window of 64 kB holds the file, and saves 20 bytes.
const params = { [constants.BROTLI_PARAM_LGWIN]: 16 };
// Another version of Node may pack the same bytes otherwise: a form that is right stays.
const isRight = existsSync(packed) && brotliDecompressSync(readFileSync(packed)).equals(bytes);
if (!isRight) writeFileSync(packed, brotliCompressSync(bytes, { params }));
