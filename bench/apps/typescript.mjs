// Peer: the official TypeScript SDK's server on Node.js, stateless, JSON answers.
//
// Every documented switch that makes it faster is set: no older revisions, no event stream, no checks of Host or Origin.
// The SDK makes a server for each request; that is how its documentation serves a stateless endpoint.
import { createServer } from "node:http";
import { McpServer, createMcpHandler } from "@modelcontextprotocol/server";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { z } from "zod";

const numbers = z.object({ a: z.number().int(), b: z.number().int() });
const sum = z.object({ result: z.number().int() });

function oneTool() {
  const server = new McpServer({ name: "bench", version: "1.0" });
  const tool = { description: "Add two integers.", inputSchema: numbers, outputSchema: sum };
  server.registerTool("add", tool, async ({ a, b }) => ({
    content: [{ type: "text", text: String(a + b) }],
    structuredContent: { result: a + b },
  }));
  return server;
}

const handler = createMcpHandler(oneTool, { legacy: "reject", responseMode: "json" });
createServer(toNodeHandler(handler)).listen(Number(process.argv[2]), "127.0.0.1");
