// mcp-remote: what an application that only knows stdio starts. The application is the official SDK's client.
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import {
  CallToolResultSchema,
  CreateMessageRequestSchema,
  ElicitRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";
import { fillIn, noting, run, stepsOf, write } from "./run.mjs";

const here = dirname(fileURLToPath(import.meta.url));

await run(async (url) => {
  const capabilities = { elicitation: {}, sampling: {} };
  const mcp = new Client({ name: "market", version: "1" }, { capabilities });
  mcp.setRequestHandler(ElicitRequestSchema, ({ params }) => ({
    action: "accept",
    content: fillIn(params.requestedSchema),
  }));
  mcp.setRequestHandler(CreateMessageRequestSchema, ({ params }) => write(params.messages));
  const args = [join(here, "node_modules/mcp-remote/dist/proxy.js"), url];
  await mcp.connect(new StdioClientTransport({ command: process.execPath, args, env: process.env }));
  const progress = async () => {
    const told = [];
    await mcp.callTool({ name: "count", arguments: {} }, CallToolResultSchema, noting(told));
    return told;
  };
  return [{ ...stepsOf(mcp), progress }, () => mcp.close()];
});
