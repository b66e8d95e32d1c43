//! One table: the tools and arguments of the cases, and ours.

use serde_json::{Value, json};

use super::case::Case;

/// One call that a case means, in the catalog's own words.
#[derive(Debug, Clone)]
pub(super) struct Form {
    pub(super) tool: String,
    pub(super) input: Value,
    /// What tells it from the case's other forms.
    pub(super) label: String,
}

/// The tools that there are on no dialect, and must not be.
pub(super) const ABSENT: [&str; 9] = [
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

/// All that a case means here; none for what is no call of a tool.
pub(super) fn forms(case: &Case) -> Vec<Form> {
    let tool = case.input["tool"].as_str().unwrap_or_default();
    let arguments = &case.input["arguments"];
    let mut forms = translated(tool, arguments);
    forms.extend(beside(&case.id));
    forms
}

fn form(tool: &str, input: Value) -> Form {
    Form { tool: tool.to_owned(), input, label: String::new() }
}

fn labelled(tool: &str, input: Value, label: &str) -> Form {
    Form { label: label.to_owned(), ..form(tool, input) }
}

fn translated(tool: &str, given: &Value) -> Vec<Form> {
    let mut given = given.clone();
    if let Some(object) = given.as_object_mut() {
        object.retain(|key, _| !key.starts_with('_'));
    }
    match tool {
        "files/read" => vec![form("files.read", given)],
        "files/mkdir" => vec![form("files.mkdir", given)],
        "files/move" => vec![form("files.move", given)],
        "files/stat" => vec![form("files.info", given)],
        "files/write" => vec![form("files.write", written(given))],
        "files/edit" => vec![form("files.edit", edited(given))],
        "files/list" if given["recursive"] == true => vec![
            labelled("files.tree", json!({ "path": given["path"], "depth": 100 }), "tree"),
            labelled("files.search", json!({ "path": given["path"], "glob": "*" }), "search"),
        ],
        "files/list" => vec![form("files.list", given)],
        "files/search" => {
            let text = json!({ "text": given["query"] });
            vec![
                labelled("files.search", text.clone(), "files"),
                labelled("search.text", text, "search"),
            ]
        }
        "exec/run" => run(&given),
        "git/status" => vec![form("git.status", given)],
        "git/log" => vec![form("git.log", given)],
        "git/diff" => vec![form("git.diff", renamed(given, "target", "ref"))],
        "git/blame" => {
            if given["path"].is_null() {
                given["path"] = json!("a.txt");
            }
            vec![form("git.blame", given)]
        }
        "git/add" => vec![form("git.add", renamed(given, "files", "paths"))],
        "git/checkout" => vec![form("git.checkout", given)],
        "git/commit" => vec![form("git.commit", given)],
        "ci/run" => vec![form("ci.build", json!({}))],
        "job/start" => {
            let argv = given["argv"].as_array().cloned().unwrap_or_else(|| vec![json!("true")]);
            let arguments = json!({ "command": argv[0], "args": argv[1..] });
            vec![form("jobs.start", json!({ "tool": "exec.run", "arguments": arguments }))]
        }
        "job/output" => {
            vec![form("jobs.output", json!({ "job_id": "{j}", "after": given["offset"] }))]
        }
        "vector/search" => vec![form("search.semantic", given)],
        "vector/status" => vec![form("search.index_status", json!({}))],
        "vector/reindex" => vec![form("search.index_status", json!({ "wait_ms": 60_000 }))],
        "schema/validate" => vec![form(
            "assets.validate_asset",
            json!({ "asset": given["instance"], "schema": "case" }),
        )],
        "schema/diff" => {
            let side = |value: &Value| match value.as_str() {
                Some(said) if said.contains("zeros") => json!(vec![0; 100_000]),
                Some(_) => json!(vec![1; 100_000]),
                None => value.clone(),
            };
            let input = json!({ "base": side(&given["a"]), "new": side(&given["b"]) });
            vec![form("assets.diff_assets", input)]
        }
        // A line for a shell, by every tool that runs programs.
        "program" => {
            let line = &given["line"];
            let declared = json!({ "line": line });
            let job = json!({ "command": line, "shell": true });
            vec![
                labelled("exec.run", job.clone(), "exec.run"),
                labelled("ci.run", json!({ "command": line }), "ci.run"),
                labelled("attack.line", declared, "declared"),
                labelled("jobs.start", json!({ "tool": "exec.run", "arguments": job }), "job"),
            ]
        }
        // Ours already.
        own if own.contains('.') => vec![form(own, given)],
        _ => Vec::new(),
    }
}

/// They replace what is there unless told otherwise; ours only if told to.
fn written(mut given: Value) -> Value {
    let keep = given["if_none_match"] == "*";
    let known = given.get("if_match").is_some();
    if let Some(object) = given.as_object_mut() {
        object.shift_remove("if_none_match");
        if !keep && !known {
            object.insert("overwrite".to_owned(), json!(true));
        }
        if let Some(Value::String(path)) = object.get_mut("path")
            && path.starts_with('<')
        {
            *path = "a".repeat(300);
        }
    }
    given
}

/// There are no ranges of bytes in an edit here; two over the same line overlap as well.
fn edited(mut given: Value) -> Value {
    for edit in given["edits"].as_array_mut().into_iter().flatten() {
        if edit.get("range").is_some() {
            *edit = json!({ "start_line": 1, "end_line": 1, "new": edit["new"] });
        }
    }
    given
}

fn renamed(mut given: Value, from: &str, to: &str) -> Value {
    if let Some(object) = given.as_object_mut()
        && let Some(value) = object.shift_remove(from)
    {
        object.insert(to.to_owned(), value);
    }
    given
}

/// A list of arguments is one program; a line is what each of ours makes of a line.
fn run(given: &Value) -> Vec<Form> {
    let mut input = json!({});
    for key in ["cwd", "timeout_ms"] {
        if let Some(value) = given.get(key) {
            input[key] = value.clone();
        }
    }
    if let Some(line) = given["command"].as_str() {
        return vec![
            labelled("exec.run", json!({ "command": line }), "command"),
            labelled("exec.run", json!({ "command": line, "shell": true }), "shell"),
            labelled("ci.run", json!({ "command": line }), "ci.run"),
        ];
    }
    let argv = given["argv"].as_array().cloned().unwrap_or_default();
    input["command"] = argv.first().cloned().unwrap_or_default();
    input["args"] = argv.get(1..).map(<[Value]>::to_vec).unwrap_or_default().into();
    vec![form("exec.run", input)]
}

/// What else is of the kind of a case.
fn beside(id: &str) -> Vec<Form> {
    let read = |path: &str, label: &str| labelled("files.read", json!({ "path": path }), label);
    let write = |path: &str, content: &str, label: &str| {
        let input = json!({ "path": path, "content": content, "overwrite": true });
        labelled("files.write", input, label)
    };
    let argv = |argv: &[&str], label: &str| {
        labelled("exec.run", json!({ "command": argv[0], "args": argv[1..] }), label)
    };
    match id {
        "F02" => vec![
            labelled("files.info", json!({ "path": "../ws_evil/secret" }), "info"),
            labelled("files.exists", json!({ "path": "../ws_evil/secret" }), "exists"),
            labelled("files.list", json!({ "path": "../ws_evil" }), "list"),
            labelled("files.tree", json!({ "path": "a/../../ws_evil" }), "tree"),
            labelled("files.search", json!({ "path": "..", "text": "canary" }), "search"),
            labelled("files.delete", json!({ "path": "../ws_evil/secret" }), "delete"),
            labelled(
                "files.copy",
                json!({ "source": "../ws_evil/secret", "destination": "stolen" }),
                "copy",
            ),
            labelled("docs.load.fetch", json!({ "path": "../ws_evil/secret" }), "docs"),
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
            labelled("files.read", json!({ "path": "f", "offset": -1 }), "negative"),
            labelled("files.read", json!({ "path": "f", "offset": 9, "length": 1 }), "beyond"),
        ],
        "E17" => ["YQ", "YQ=", "-_-_", "Y Q==", "YQ==\n"]
            .iter()
            .map(|encoded| {
                let input = json!({ "path": "f", "content_base64": encoded, "overwrite": true });
                labelled("files.write", input, encoded)
            })
            .collect(),
        "E18" => vec![write("ok.txt/below", "x", "below a file")],
        "R08" => vec![labelled("files.search", json!({ "text": "(?<=a)b" }), "look-behind")],
        "R01" => vec![
            labelled("files.info", json!({ "path": "big" }), "info"),
            labelled("files.search", json!({ "text": "x" }), "search"),
        ],
        // What `sh` is here may know no such thing.
        "X04" => vec![argv(&["bash", "-c", "cat <(touch {EVIL}/w)"], "bash")],
        "X05" => vec![
            argv(&["/usr/bin/touc?", "{EVIL}/w"], "glob"),
            argv(&["$T", "{EVIL}/w"], "variable"),
        ],
        "X11" => vec![argv(&["rg", "--pre", "{WS}/pre.sh", "x", "{WS}/ok.txt"], "script")],
        "X12" => vec![
            argv(&["sort", "--files0-from={EVIL}/secret", "-o", "{EVIL}/w"], "files0-from"),
            argv(
                &["sort", "-S", "64k", "--compress-program={WS}/pre.sh", "long.txt"],
                "compress-program",
            ),
        ],
        "X09" => vec![
            argv(&["find", ".", "-maxdepth", "0", "-fprintf", "{EVIL}/w", "x"], "fprintf"),
            argv(&["find", "{EVIL}", "-name", "victim", "-delete"], "delete"),
        ],
        "X14" => vec![
            argv(&["perl", "-e", "open(F,'>','{EVIL}/w') or die $!"], "perl"),
            argv(&["bash", "-c", "echo x > {EVIL}/w"], "bash"),
            argv(&["node", "-e", "require('fs').writeFileSync('{EVIL}/w','x')"], "node"),
        ],
        "X20" => vec![
            labelled(
                "exec.run",
                json!({ "command": "cat", "args": ["secret"], "cwd": "../ws_evil" }),
                "..",
            ),
            labelled(
                "exec.run",
                json!({ "command": "cat", "args": ["secret"], "cwd": "{EVIL}" }),
                "absolute",
            ),
            labelled("ci.run", json!({ "command": "cat secret", "folder": "abs_dir" }), "ci.run"),
        ],
        "X55" => vec![
            argv(&["npm", "exec", "-c", "touch {EVIL}/w"], "npm exec"),
            argv(
                &["cargo", "--config", "build.rustc-wrapper='{WS}/pre.sh'", "build", "--offline"],
                "cargo",
            ),
            labelled(
                "exec.run",
                json!({ "command": "make", "args": ["-f", "-"], "stdin": "all:\n\ttouch {EVIL}/w\n" }),
                "make",
            ),
            argv(
                &["docker", "run", "-v", "/:/host", "busybox", "touch", "/host{EVIL}/w"],
                "docker",
            ),
        ],
        "V07" => vec![
            labelled("search.text", json!({ "text": "KEY" }), "text"),
            labelled("search.names", json!({ "name": "KEY" }), "names"),
        ],
        "V10" => ["the of and to a", "(){}[];,.", "\u{1}\u{7}\u{1b}[2J", &"x ".repeat(500_000)]
            .iter()
            .map(|query| {
                let label: String = query.chars().take(4).filter(|c| !c.is_control()).collect();
                labelled("search.semantic", json!({ "query": query }), &label)
            })
            .collect(),
        _ => git(id),
    }
}

/// The other verbs that a case's trap could be sprung by.
fn git(id: &str) -> Vec<Form> {
    let verb = |tool: &str, input: Value| labelled(tool, input, tool);
    match id {
        "G01" | "G04" | "G11" => vec![
            verb("git.diff", json!({})),
            verb("git.add", json!({ "paths": ["a.txt"] })),
            verb("git.commit", json!({ "message": "m", "all": true })),
            verb("git.blame", json!({ "path": "a.txt" })),
            verb("git.stash", json!({})),
            verb("git.checkout", json!({ "ref": "other" })),
        ],
        "G02" | "G06" => {
            vec![verb("git.show", json!({})), verb("git.log", json!({ "path": "a.txt" }))]
        }
        "G05" => vec![
            verb("git.diff", json!({})),
            verb("git.log", json!({ "path": "a.txt" })),
            verb("git.show", json!({})),
        ],
        "G09" => vec![
            verb("git.commit", json!({ "message": "m", "all": true })),
            verb("git.show", json!({})),
        ],
        "G13" => vec![
            verb("git.diff", json!({ "ref": "--output={EVIL}/w" })),
            verb("git.show", json!({ "ref": "--output={EVIL}/w" })),
            verb("git.checkout", json!({ "ref": "--output={EVIL}/w" })),
        ],
        "G18" => vec![
            verb("git.add", json!({ "paths": [":(glob)**"] })),
            verb("git.add", json!({ "paths": [":/"] })),
        ],
        "G20" => vec![
            verb("git.show", json!({ "ref": "HEAD:../../ws_evil/secret" })),
            verb("git.show", json!({ "ref": "HEAD", "file": "../ws_evil/secret" })),
            verb("git.blame", json!({ "path": "../ws_evil/secret" })),
        ],
        "G21" => vec![
            verb("git.log", json!({ "repo": "abs_dir" })),
            verb("git.status", json!({ "repo": "{EVIL}" })),
            verb("git.show", json!({ "repo": "../ws_evil" })),
        ],
        "G24" => vec![verb("git.log", json!({}))],
        "G29" => vec![verb("git.log", json!({})), verb("git.show", json!({}))],
        "G32" => vec![verb("git.show", json!({})), verb("git.blame", json!({ "path": "big.txt" }))],
        "G33" => vec![
            verb("git.status", json!({})),
            verb("git.branches", json!({})),
            verb("git.show", json!({})),
            verb("git.blame", json!({ "path": "a.txt" })),
        ],
        "T07" => vec![
            verb("git.log", json!({})),
            verb("git.status", json!({})),
            verb("git.diff", json!({})),
            verb("git.show", json!({})),
            verb("git.blame", json!({ "path": "a.txt" })),
            verb("git.branches", json!({})),
            verb("git.current_branch", json!({})),
        ],
        _ => Vec::new(),
    }
}
