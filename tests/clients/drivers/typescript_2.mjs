// The official TypeScript SDK, 2.x, as it comes.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { fillIn, noting, run, stepsOf, write } from "./run.mjs";

await run(async (url) => {
  const capabilities = { elicitation: {}, sampling: {} };
  const mcp = new Client({ name: "market", version: "1" }, { capabilities });
  mcp.setRequestHandler("elicitation/create", ({ params }) => ({
    action: "accept",
    content: fillIn(params.requestedSchema),
  }));
  mcp.setRequestHandler("sampling/createMessage", ({ params }) => write(params.messages));
  await mcp.connect(new StreamableHTTPClientTransport(new URL(url)));
  const progress = async () => {
    const told = [];
    await mcp.callTool({ name: "count", arguments: {} }, noting(told));
    return told;
  };
  return [{ ...stepsOf(mcp), progress }, () => mcp.close()];
});
