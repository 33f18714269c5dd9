// Codex CLI, driven by a model that calls its shell, its patch tool and its code mode, over HTTP and over a WebSocket.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const root = mkdtempSync(join(process.env.SCRATCH, "codex-"));
const work = mkdtempSync(join(root, "work-"));
writeFileSync(
  join(root, "config.toml"),
  `model = "gpt-5.5"
model_provider = "backburner"

[model_providers.backburner]
name = "Backburner"
base_url = "${process.env.OPENAI_BASE_URL}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
`,
);

function codex(...words) {
  const options = { cwd: work, env: { ...process.env, CODEX_HOME: root }, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], timeout: 60_000 };
  return execFileSync(join(import.meta.dirname, "node_modules/.bin/codex"), ["exec", "--skip-git-repo-check", ...words], options);
}

const unguarded = ["--sandbox", "danger-full-access"]; // the sandbox wants privileges that a container may lack
const socket = ["-c", "model_providers.backburner.supports_websockets=true"];
const patch = "*** Begin Patch\\n*** Add File: b.txt\\n+patched\\n*** End Patch\\n";

function shell(...words) {
  const said = codex(...unguarded, ...words, 'Write. [[think hm]][[call exec_command {"cmd": "echo hi >> a.txt; cat a.txt"}]][[then]][[say Done: {result}]]');
  assert.match(said, /Done: [^]*hi/);
}

function code(...words) {
  const script = `text(JSON.stringify(await tools.exec_command({cmd: "echo from code"})))`.replaceAll('"', '\\"');
  const prompt = `Code. [[call functions__exec {"input": "${script}"}]][[then]][[say Done: {result}]]`;
  assert.match(codex(...unguarded, ...words, "--model", "gpt-6.1-sol", prompt), /Done: [^]*from code/);
}

const scenarios = {
  text() {
    assert.match(codex("Say hello. [[say Hello from the model.]]"), /Hello from the model/);
  },
  shell() {
    shell();
    assert.equal(readFileSync(join(work, "a.txt"), "utf8"), "hi\n");
  },
  patch() {
    const said = codex(...unguarded, `Patch. [[call apply_patch {"input": "${patch}"}]][[then]][[say Done: {result}]]`);
    assert.match(said, /Done: [^]*Success/);
    assert.equal(readFileSync(join(work, "b.txt"), "utf8"), "patched\n");
  },
  resume() {
    codex("First. [[say one]]");
    assert.match(codex("resume", "--last", "Second. [[say users: {heard}]]"), /users: \d/);
  },
  code_mode() {
    code();
  },
  socket() {
    shell(...socket);
    code(...socket);
  },
};

for (const [name, act] of Object.entries(scenarios)) {
  if (process.argv[2] && process.argv[2] !== name) continue;
  act();
  console.log("ok", name);
}
