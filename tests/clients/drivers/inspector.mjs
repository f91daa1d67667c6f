// The Inspector's command line: a process for each request, which can be asked nothing.
import { execFile } from "node:child_process";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { run } from "./run.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const program = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js";

await run(async (url) => {
  const ask = async (method, ...more) => {
    const all = [join(here, program), "--cli", url, "--transport", "http", "--method", method, "--quiet", ...more];
    const { stdout } = await promisify(execFile)(process.execPath, all);
    return JSON.parse(stdout);
  };
  const call = (name, args) =>
    ask("tools/call", "--tool-name", name, "--tool-args-json", JSON.stringify(args));
  const steps = {
    tools: async () => (await ask("tools/list")).tools.map((tool) => tool.name),
    call: async () => (await call("echo", { text: "hello" })).content[0].text,
    structured: async () => (await call("add", { a: 2, b: 3 })).structuredContent,
    progress: null,
    resources: async () => {
      const found = (await ask("resources/list")).resources.map((one) => one.uri);
      const { resourceTemplates } = await ask("resources/templates/list");
      found.push(...resourceTemplates.map((one) => one.uriTemplate));
      for (const uri of ["note://today", "note://monday/first"])
        found.push((await ask("resources/read", "--uri", uri)).contents[0].text);
      return found;
    },
    prompts: async () => {
      const found = (await ask("prompts/list")).prompts.map((one) => one.name);
      const got = await ask("prompts/get", "--prompt-name", "review", "--prompt-args", "language=perl");
      return [...found, got.messages[0].content.text];
    },
    completion: null,
    form: null,
    silent: async () => (await call("quiet", {})).content[0].text,
    sample: null,
  };
  return [steps, async () => {}];
});
