// Prints what `main` of the module that is named returns for the JSON on standard input.
import { readFileSync } from "node:fs";

const { main } = await import(process.argv[2]);
console.log(JSON.stringify(await main(JSON.parse(readFileSync(0, "utf8")))));
