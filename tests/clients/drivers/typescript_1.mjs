// The official TypeScript SDK, 1.x.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CallToolResultSchema,
  CreateMessageRequestSchema,
  ElicitRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";
import { fillIn, noting, run, stepsOf, write } from "./run.mjs";

await run(async (url) => {
  const capabilities = { elicitation: {}, sampling: {} };
  const mcp = new Client({ name: "market", version: "1" }, { capabilities });
  mcp.setRequestHandler(ElicitRequestSchema, ({ params }) => ({
    action: "accept",
    content: fillIn(params.requestedSchema),
  }));
  mcp.setRequestHandler(CreateMessageRequestSchema, ({ params }) => write(params.messages));
  await mcp.connect(new StreamableHTTPClientTransport(new URL(url)));
  const progress = async () => {
    const told = [];
    await mcp.callTool({ name: "count", arguments: {} }, CallToolResultSchema, noting(told));
    return told;
  };
  return [{ ...stepsOf(mcp), progress }, () => mcp.close()];
});
