//! Translates the tools and arguments of attack cases to toolgate's catalog, and adds related
//! calls.

use serde_json::{Value, json};

use super::case::AttackCase;

/// Variant of an attack's call, with names of toolgate's catalog.
#[derive(Debug, Clone)]
pub(super) struct AttackCallVariant {
    pub(super) tool: String,
    pub(super) input: Value,
    /// Label that distinguishes the variant from others of its case. Empty for the first variant.
    pub(super) label: String,
}

/// Names of tools in attack cases that no dialect may offer.
pub(super) const ABSENT_TOOLS: [&str; 9] = [
    "files/unzip",
    "config/set",
    "git/fetch",
    "git/merge",
    "git/clone",
    "ci/report",
    "admin/add_tool",
    "files/extract",
    "policy/set",
];

/// Returns the variants of the call of `case`. Returns an empty list if the case calls no tool.
pub(super) fn variants(case: &AttackCase) -> Vec<AttackCallVariant> {
    let tool = case.input["tool"].as_str().unwrap_or_default();
    let arguments = &case.input["arguments"];
    let mut variants = translate(tool, arguments);
    variants.extend(related_calls(&case.id));
    variants
}

/// Returns a variant that has no label.
fn variant(tool: &str, input: Value) -> AttackCallVariant {
    AttackCallVariant { tool: tool.to_owned(), input, label: String::new() }
}

/// Returns a variant with the label `label`.
fn labeled(tool: &str, input: Value, label: &str) -> AttackCallVariant {
    AttackCallVariant { label: label.to_owned(), ..variant(tool, input) }
}

/// Translates the call of a case to calls of catalog tools. Returns an empty list for an unknown
/// tool.
fn translate(tool: &str, input: &Value) -> Vec<AttackCallVariant> {
    let mut input = input.clone();
    if let Some(object) = input.as_object_mut() {
        object.retain(|key, _| !key.starts_with('_'));
    }
    match tool {
        "files/read" => vec![variant("files.read", input)],
        "files/mkdir" => vec![variant("files.mkdir", input)],
        "files/move" => vec![variant("files.move", input)],
        "files/stat" => vec![variant("files.info", input)],
        "files/write" => vec![variant("files.write", to_write_input(input))],
        "files/edit" => vec![variant("files.edit", to_edit_input(input))],
        "files/list" if input["recursive"] == true => vec![
            labeled("files.tree", json!({ "path": input["path"], "depth": 100 }), "tree"),
            labeled("files.search", json!({ "path": input["path"], "glob": "*" }), "search"),
        ],
        "files/list" => vec![variant("files.list", input)],
        "files/search" => {
            let text = json!({ "text": input["query"] });
            vec![
                labeled("files.search", text.clone(), "files"),
                labeled("search.text", text, "search"),
            ]
        }
        "exec/run" => run_variants(&input),
        "git/status" => vec![variant("git.status", input)],
        "git/log" => vec![variant("git.log", input)],
        "git/diff" => vec![variant("git.diff", rename_key(input, "target", "ref"))],
        "git/blame" => {
            if input["path"].is_null() {
                input["path"] = json!("a.txt");
            }
            vec![variant("git.blame", input)]
        }
        "git/add" => vec![variant("git.add", rename_key(input, "files", "paths"))],
        "git/checkout" => vec![variant("git.checkout", input)],
        "git/commit" => vec![variant("git.commit", input)],
        "ci/run" => vec![variant("ci.build", json!({}))],
        "job/start" => {
            let argv = input["argv"].as_array().cloned().unwrap_or_else(|| vec![json!("true")]);
            let arguments = json!({ "command": argv[0], "args": argv[1..] });
            vec![variant("jobs.start", json!({ "tool": "exec.run", "arguments": arguments }))]
        }
        "job/output" => {
            vec![variant("jobs.output", json!({ "job_id": "{j}", "after": input["offset"] }))]
        }
        "vector/search" => vec![variant("search.semantic", input)],
        "vector/status" => vec![variant("search.index_status", json!({}))],
        "vector/reindex" => vec![variant("search.index_status", json!({ "wait_ms": 60_000 }))],
        "schema/validate" => vec![variant(
            "assets.validate_asset",
            json!({ "asset": input["instance"], "schema": "case" }),
        )],
        "schema/diff" => {
            let side = |value: &Value| match value.as_str() {
                Some(text) if text.contains("zeros") => json!(vec![0; 100_000]),
                Some(_) => json!(vec![1; 100_000]),
                None => value.clone(),
            };
            let input = json!({ "base": side(&input["a"]), "new": side(&input["b"]) });
            vec![variant("assets.diff_assets", input)]
        }
        // A shell line, run by every tool that runs programs.
        "program" => {
            let line = &input["line"];
            let declared = json!({ "line": line });
            let job = json!({ "command": line, "shell": true });
            vec![
                labeled("exec.run", job.clone(), "exec.run"),
                labeled("ci.run", json!({ "command": line }), "ci.run"),
                labeled("attack.line", declared, "declared"),
                labeled("jobs.start", json!({ "tool": "exec.run", "arguments": job }), "job"),
            ]
        }
        // A tool of the catalog.
        name if name.contains('.') => vec![variant(name, input)],
        _ => Vec::new(),
    }
}

/// Translates the input of a write. In attack cases, a write replaces a file unless the input
/// forbids that. In toolgate, a write replaces a file only if the input allows that.
fn to_write_input(mut input: Value) -> Value {
    let forbids_replacing = input["if_none_match"] == "*";
    let has_etag = input.get("if_match").is_some();
    if let Some(object) = input.as_object_mut() {
        object.shift_remove("if_none_match");
        if !forbids_replacing && !has_etag {
            object.insert("overwrite".to_owned(), json!(true));
        }
        if let Some(Value::String(path)) = object.get_mut("path")
            && path.starts_with('<')
        {
            *path = "a".repeat(300);
        }
    }
    input
}

/// Translates the input of an edit. toolgate's edits have no byte ranges. Both edits of a case
/// therefore get the same line, so that they overlap, too.
fn to_edit_input(mut input: Value) -> Value {
    for edit in input["edits"].as_array_mut().into_iter().flatten() {
        if edit.get("range").is_some() {
            *edit = json!({ "start_line": 1, "end_line": 1, "new": edit["new"] });
        }
    }
    input
}

fn rename_key(mut input: Value, from: &str, to: &str) -> Value {
    if let Some(object) = input.as_object_mut()
        && let Some(value) = object.shift_remove(from)
    {
        object.insert(to.to_owned(), value);
    }
    input
}

/// Translates the run of a program. A list of arguments is one variant. A shell line becomes a
/// variant for each tool that accepts lines.
fn run_variants(arguments: &Value) -> Vec<AttackCallVariant> {
    let mut input = json!({});
    for key in ["cwd", "timeout_ms"] {
        if let Some(value) = arguments.get(key) {
            input[key] = value.clone();
        }
    }
    if let Some(line) = arguments["command"].as_str() {
        return vec![
            labeled("exec.run", json!({ "command": line }), "command"),
            labeled("exec.run", json!({ "command": line, "shell": true }), "shell"),
            labeled("ci.run", json!({ "command": line }), "ci.run"),
        ];
    }
    let argv = arguments["argv"].as_array().cloned().unwrap_or_default();
    input["command"] = argv.first().cloned().unwrap_or_default();
    input["args"] = argv.get(1..).map(<[Value]>::to_vec).unwrap_or_default().into();
    vec![variant("exec.run", input)]
}

/// Returns further calls that attempt the same attack as the case `id`.
fn related_calls(id: &str) -> Vec<AttackCallVariant> {
    let read = |path: &str, label: &str| labeled("files.read", json!({ "path": path }), label);
    let write = |path: &str, content: &str, label: &str| {
        let input = json!({ "path": path, "content": content, "overwrite": true });
        labeled("files.write", input, label)
    };
    let run = |argv: &[&str], label: &str| {
        labeled("exec.run", json!({ "command": argv[0], "args": argv[1..] }), label)
    };
    match id {
        "F02" => vec![
            labeled("files.info", json!({ "path": "../ws_evil/secret" }), "info"),
            labeled("files.exists", json!({ "path": "../ws_evil/secret" }), "exists"),
            labeled("files.list", json!({ "path": "../ws_evil" }), "list"),
            labeled("files.tree", json!({ "path": "a/../../ws_evil" }), "tree"),
            labeled("files.search", json!({ "path": "..", "text": "canary" }), "search"),
            labeled("files.delete", json!({ "path": "../ws_evil/secret" }), "delete"),
            labeled(
                "files.copy",
                json!({ "source": "../ws_evil/secret", "destination": "stolen" }),
                "copy",
            ),
            labeled("docs.load.fetch", json!({ "path": "../ws_evil/secret" }), "docs"),
        ],
        "F04" => vec![read("{EVIL}/secret", "evil")],
        "F35" => vec![read("ok.txt/", "slash")],
        "F37" => {
            let long = "a/".repeat(2500);
            vec![write(&long, "x", "5000"), read(&"a".repeat(5000), "read 5000")]
        }
        "F38" => vec![read(".", "dot"), read("   ", "blanks")],
        "F45" => vec![
            write("sub/.GIT", "gitdir: {EVIL}/evilgit", ".GIT"),
            write("sub/.git ", "gitdir: {EVIL}/evilgit", "blank"),
            write("sub/.git\u{200c}", "gitdir: {EVIL}/evilgit", "200c"),
            write(".git", "gitdir: {EVIL}/evilgit", "top"),
            write("sub/.git/config", "[core]", "config"),
        ],
        "F46" => {
            [".vscode/settings.json", ".idea/x", ".claude/settings.json", ".codex/config.toml"]
                .iter()
                .chain(&["toolgate.toml", "toolgate.lock", ".cursor/mcp.json", ".MCP.json"])
                .map(|path| write(path, "{}", path))
                .collect()
        }
        "E14" => vec![
            labeled("files.read", json!({ "path": "f", "offset": -1 }), "negative"),
            labeled("files.read", json!({ "path": "f", "offset": 9, "length": 1 }), "beyond"),
        ],
        "E17" => ["YQ", "YQ=", "-_-_", "Y Q==", "YQ==\n"]
            .iter()
            .map(|encoded| {
                let input = json!({ "path": "f", "content_base64": encoded, "overwrite": true });
                labeled("files.write", input, encoded)
            })
            .collect(),
        "E18" => vec![write("ok.txt/below", "x", "below a file")],
        "R08" => vec![labeled("files.search", json!({ "text": "(?<=a)b" }), "look-behind")],
        "R01" => vec![
            labeled("files.info", json!({ "path": "big" }), "info"),
            labeled("files.search", json!({ "text": "x" }), "search"),
        ],
        // `sh` may not support process substitution.
        "X04" => vec![run(&["bash", "-c", "cat <(touch {EVIL}/w)"], "bash")],
        "X05" => {
            vec![run(&["/usr/bin/touc?", "{EVIL}/w"], "glob"), run(&["$T", "{EVIL}/w"], "variable")]
        }
        "X11" => vec![run(&["rg", "--pre", "{WS}/pre.sh", "x", "{WS}/ok.txt"], "script")],
        "X12" => vec![
            run(&["sort", "--files0-from={EVIL}/secret", "-o", "{EVIL}/w"], "files0-from"),
            run(
                &["sort", "-S", "64k", "--compress-program={WS}/pre.sh", "long.txt"],
                "compress-program",
            ),
        ],
        "X09" => vec![
            run(&["find", ".", "-maxdepth", "0", "-fprintf", "{EVIL}/w", "x"], "fprintf"),
            run(&["find", "{EVIL}", "-name", "victim", "-delete"], "delete"),
        ],
        "X14" => vec![
            run(&["perl", "-e", "open(F,'>','{EVIL}/w') or die $!"], "perl"),
            run(&["bash", "-c", "echo x > {EVIL}/w"], "bash"),
            run(&["node", "-e", "require('fs').writeFileSync('{EVIL}/w','x')"], "node"),
        ],
        "X20" => vec![
            labeled(
                "exec.run",
                json!({ "command": "cat", "args": ["secret"], "cwd": "../ws_evil" }),
                "..",
            ),
            labeled(
                "exec.run",
                json!({ "command": "cat", "args": ["secret"], "cwd": "{EVIL}" }),
                "absolute",
            ),
            labeled("ci.run", json!({ "command": "cat secret", "folder": "abs_dir" }), "ci.run"),
        ],
        "X55" => vec![
            run(&["npm", "exec", "-c", "touch {EVIL}/w"], "npm exec"),
            run(
                &["cargo", "--config", "build.rustc-wrapper='{WS}/pre.sh'", "build", "--offline"],
                "cargo",
            ),
            labeled(
                "exec.run",
                json!({ "command": "make", "args": ["-f", "-"], "stdin": "all:\n\ttouch {EVIL}/w\n" }),
                "make",
            ),
            run(&["docker", "run", "-v", "/:/host", "busybox", "touch", "/host{EVIL}/w"], "docker"),
        ],
        "V07" => vec![
            labeled("search.text", json!({ "text": "KEY" }), "text"),
            labeled("search.names", json!({ "name": "KEY" }), "names"),
        ],
        "V10" => ["the of and to a", "(){}[];,.", "\u{1}\u{7}\u{1b}[2J", &"x ".repeat(500_000)]
            .iter()
            .map(|query| {
                let label: String = query.chars().take(4).filter(|c| !c.is_control()).collect();
                labeled("search.semantic", json!({ "query": query }), &label)
            })
            .collect(),
        _ => related_git_calls(id),
    }
}

/// Returns calls of other git tools that could run the trap of the case `id`.
fn related_git_calls(id: &str) -> Vec<AttackCallVariant> {
    let call = |tool: &str, input: Value| labeled(tool, input, tool);
    match id {
        "G01" | "G04" | "G11" => vec![
            call("git.diff", json!({})),
            call("git.add", json!({ "paths": ["a.txt"] })),
            call("git.commit", json!({ "message": "m", "all": true })),
            call("git.blame", json!({ "path": "a.txt" })),
            call("git.stash", json!({})),
            call("git.checkout", json!({ "ref": "other" })),
        ],
        "G02" | "G06" => {
            vec![call("git.show", json!({})), call("git.log", json!({ "path": "a.txt" }))]
        }
        "G05" => vec![
            call("git.diff", json!({})),
            call("git.log", json!({ "path": "a.txt" })),
            call("git.show", json!({})),
        ],
        "G09" => vec![
            call("git.commit", json!({ "message": "m", "all": true })),
            call("git.show", json!({})),
        ],
        "G13" => vec![
            call("git.diff", json!({ "ref": "--output={EVIL}/w" })),
            call("git.show", json!({ "ref": "--output={EVIL}/w" })),
            call("git.checkout", json!({ "ref": "--output={EVIL}/w" })),
        ],
        "G18" => vec![
            call("git.add", json!({ "paths": [":(glob)**"] })),
            call("git.add", json!({ "paths": [":/"] })),
        ],
        "G20" => vec![
            call("git.show", json!({ "ref": "HEAD:../../ws_evil/secret" })),
            call("git.show", json!({ "ref": "HEAD", "file": "../ws_evil/secret" })),
            call("git.blame", json!({ "path": "../ws_evil/secret" })),
        ],
        "G21" => vec![
            call("git.log", json!({ "repo": "abs_dir" })),
            call("git.status", json!({ "repo": "{EVIL}" })),
            call("git.show", json!({ "repo": "../ws_evil" })),
        ],
        "G24" => vec![call("git.log", json!({}))],
        "G29" => vec![call("git.log", json!({})), call("git.show", json!({}))],
        "G32" => vec![call("git.show", json!({})), call("git.blame", json!({ "path": "big.txt" }))],
        "G33" => vec![
            call("git.status", json!({})),
            call("git.branches", json!({})),
            call("git.show", json!({})),
            call("git.blame", json!({ "path": "a.txt" })),
        ],
        "T07" => vec![
            call("git.log", json!({})),
            call("git.status", json!({})),
            call("git.diff", json!({})),
            call("git.show", json!({})),
            call("git.blame", json!({ "path": "a.txt" })),
            call("git.branches", json!({})),
            call("git.current_branch", json!({})),
        ],
        _ => Vec::new(),
    }
}
