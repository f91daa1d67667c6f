// A host of MCP Apps: the official client at the gateway, the official bridge to the page. Reports what the page shows.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

const LIMIT_MS = 60_000;
const query = new URLSearchParams(location.search);
const calls = [];

// Waits until `isTrue`, at most for LIMIT_MS; the report shows what is missing then.
async function until(isTrue) {
  for (const end = Date.now() + LIMIT_MS; !isTrue() && Date.now() < end; ) {
    await new Promise((done) => setTimeout(done, 50));
  }
}

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
  const button = () => frame.contentDocument.querySelector(query.get("button"));
  if (query.get("button")) {
    await until(button);
    button().click();
  }
  await until(() => !query.get("calls") || calls.includes(query.get("calls")));
  await until(() => frame.contentDocument.body.innerText.includes(query.get("shows")));
  return { uri: page.uri, mimeType: page.mimeType, text: frame.contentDocument.body.innerText, calls };
}

const report = await outcome().catch((error) => ({ error: String(error?.stack ?? error) }));
await fetch("/outcome", { method: "POST", body: JSON.stringify(report) });
