// What a driver in JavaScript shares with the others: runs its steps and prints what came back (see run.py).

const STEP_MS = 60_000;

export async function run(connected) {
  const told = {};
  let close = async () => {};
  try {
    const [steps, end] = await connected(process.argv[2]);
    close = end;
    for (const [name, step] of Object.entries(steps)) told[name] = step && (await outcome(step));
    await close();
  } catch (error) {
    told.connection = { error: said(error) };
  }
  console.log("\n" + JSON.stringify(told));
  process.exit(0);
}

async function outcome(step) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no result in ${STEP_MS / 1000} s`)), STEP_MS);
  });
  try {
    return { value: await Promise.race([step(), late]) };
  } catch (error) {
    return { error: said(error) };
  } finally {
    clearTimeout(timer);
  }
}

function said(error) {
  return `${error.name}: ${error.message}`.slice(0, 500);
}

export const FORM = { who: { name: "Ann" }, where: { place: "Rome" } };

export function fillIn(schema) {
  return "name" in schema.properties ? FORM.who : FORM.where;
}

export function write(messages) {
  const content = messages[0].content;
  const text = (Array.isArray(content) ? content[0] : content).text;
  return {
    role: "assistant",
    content: { type: "text", text: `a poem, for '${text}'` },
    model: "parrot",
  };
}

// The steps of a client whose methods are those of the official SDK.
export function stepsOf(mcp) {
  const textOf = async (name, args = {}) => {
    let { text } = (await mcp.callTool({ name, arguments: args })).content[0];
    // as its model would, which reads on what to do
    while (text.startsWith("PENDING ")) {
      const [, token] = text.split(/\s+/);
      ({ text } = (await mcp.callTool({ name: "continue_call", arguments: { token } })).content[0]);
    }
    return text;
  };
  return {
    tools: async () => (await mcp.listTools()).tools.map((tool) => tool.name),
    call: () => textOf("echo", { text: "hello" }),
    structured: async () =>
      (await mcp.callTool({ name: "add", arguments: { a: 2, b: 3 } })).structuredContent,
    progress: null,
    resources: async () => {
      const found = (await mcp.listResources()).resources.map((one) => one.uri);
      const { resourceTemplates } = await mcp.listResourceTemplates();
      found.push(...resourceTemplates.map((one) => one.uriTemplate));
      for (const uri of ["note://today", "note://monday/first"])
        found.push((await mcp.readResource({ uri })).contents[0].text);
      return found;
    },
    prompts: async () => {
      const found = (await mcp.listPrompts()).prompts.map((one) => one.name);
      const got = await mcp.getPrompt({ name: "review", arguments: { language: "perl" } });
      return [...found, got.messages[0].content.text];
    },
    completion: async () => {
      const ref = { type: "ref/prompt", name: "review" };
      const argument = { name: "language", value: "p" };
      return (await mcp.complete({ ref, argument })).completion.values;
    },
    form: () => textOf("trip"),
    silent: () => textOf("quiet"),
    sample: () => textOf("haiku", { subject: "rain" }),
  };
}

export function noting(told) {
  return { onprogress: ({ progress, total, message }) => told.push([progress, total, message]) };
}
