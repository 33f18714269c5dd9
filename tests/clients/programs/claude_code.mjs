// Claude Code without a terminal, driven by a model that calls its shell and its tools for files.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { join } from "node:path";

const home = mkdtempSync(join(process.env.SCRATCH, "claude-"));
const work = mkdtempSync(join(home, "work-"));
const model = "puppet";
const env = {
  PATH: process.env.PATH,
  HOME: home,
  ANTHROPIC_BASE_URL: process.env.OPENAI_BASE_URL.replace(/\/v1$/, ""),
  ANTHROPIC_AUTH_TOKEN: process.env.OPENAI_API_KEY,
  ANTHROPIC_MODEL: model,
  ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
  DISABLE_AUTOUPDATER: "1",
};

function claude(...words) {
  const options = { cwd: work, env, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], timeout: 90_000 };
  const said = execFileSync(join(import.meta.dirname, "node_modules/.bin/claude"), ["-p", "--output-format", "json", ...words, "--allowedTools", "Bash,Read,Write"], options);
  const result = JSON.parse(said);
  assert.equal(result.is_error, false, said);
  return result;
}

const few = ["--tools", "Read,Write"]; // one recording with all tools is enough

const scenarios = {
  text() {
    const { result, usage } = claude("Say hello. [[say Hello from the model.]]", ...few);
    assert.equal(result, "Hello from the model.");
    assert.deepEqual([usage.input_tokens, usage.output_tokens], [11, 7]);
  },
  shell() {
    const { result, num_turns } = claude('Write. [[think hm]][[call Bash {"command": "echo hi >> a.txt; cat a.txt"}]][[then]][[say Done: {result}]]');
    assert.match(result, /Done: hi/);
    assert.equal(num_turns, 2);
    assert.equal(readFileSync(join(work, "a.txt"), "utf8"), "hi\n");
  },
  files() {
    const path = join(work, "b.txt");
    const { result } = claude(`Write. [[call Write {"file_path": "${path}", "content": "written"}]][[then]][[call Read {"file_path": "${path}"}]][[then]][[say Done: {result}]]`, ...few);
    assert.match(result, /written/);
    assert.equal(readFileSync(path, "utf8"), "written");
  },
  resume() {
    claude("First. [[say one]]", ...few);
    assert.match(claude("--continue", "Second. [[say users: {heard}]]", ...few).result, /users: \d/);
  },
};

for (const [name, act] of Object.entries(scenarios)) {
  if (process.argv[2] && process.argv[2] !== name) continue;
  act();
  console.log("ok", name);
}
