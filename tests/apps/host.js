// A host of MCP Apps: the official client at the gateway, the official bridge to the page. Reports what the page shows.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

const SETTLED_MS = 1500;
const query = new URLSearchParams(location.search);
const pause = () => new Promise((done) => setTimeout(done, SETTLED_MS));
const calls = [];

async function outcome() {
  const client = new Client(
    { name: "host", version: "1" },
    { capabilities: { extensions: { "io.modelcontextprotocol/ui": { mimeTypes: ["text/html;profile=mcp-app"] } } } },
  );
  await client.connect(new StreamableHTTPClientTransport(new URL(query.get("path"), location.href)));
  const { tools } = await client.listTools();
  const tool = tools.find((listed) => listed._meta?.ui?.resourceUri);
  const [page] = (await client.readResource({ uri: tool._meta.ui.resourceUri })).contents;
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts allow-same-origin"; // a real host takes another origin; this one presses a button
  frame.style = "width: 900px; height: 700px; border: 0";
  document.body.append(frame);
  const bridge = new AppBridge(null, { name: "host", version: "1" }, { serverTools: {}, logging: {} });
  bridge.oncalltool = (params) => {
    calls.push(params.name);
    if (!tools.some((listed) => listed.name === params.name)) throw new Error(`${params.name} is not listed`);
    return client.callTool(params);
  };
  const initialized = new Promise((done) => bridge.addEventListener("initialized", done));
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  frame.srcdoc = page.text;
  await initialized;
  await bridge.sendToolInput({ arguments: {} });
  await bridge.sendToolResult(await client.callTool({ name: tool.name, arguments: {} }));
  await pause();
  if (query.get("button")) {
    frame.contentDocument.querySelector(query.get("button")).click();
    await pause();
  }
  return { uri: page.uri, mimeType: page.mimeType, text: frame.contentDocument.body.innerText, calls };
}

const report = await outcome().catch((error) => ({ error: String(error?.stack ?? error) }));
await fetch("/outcome", { method: "POST", body: JSON.stringify(report) });
