//! Tests that invalid arguments for every tool of the contract are refused, and that the call
//! changes nothing.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::client::{TOOLS, over_all};
use crate::support::TempWorkspace;

/// Returns every file beneath `folder` with its content.
fn snapshot(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.insert(format!("{}/", path.display()), Vec::new());
            found.extend(snapshot(&path));
        } else {
            found.insert(path.display().to_string(), std::fs::read(&path).unwrap());
        }
    }
    found
}

/// Returns valid arguments for `tool` with which a call would change the workspace.
fn valid_arguments(tool: &str) -> Value {
    match tool {
        "filesystem/write" => json!({ "path": "README.md", "content": "overwritten" }),
        "filesystem/mkdir" => json!({ "path": "made" }),
        "git/add" => json!({ "files": "." }),
        "git/commit" => json!({ "message": "made" }),
        "ci/run" => json!({ "command": "touch made" }),
        _ if tool.starts_with("filesystem/") => json!({ "path": "README.md" }),
        _ => json!({}),
    }
}

#[test]
fn s2_18_28_41_invalid_arguments_are_refused_and_nothing_is_done() {
    let workspace = TempWorkspace::new().file("Makefile", "all build test:\n\ttouch made\n");
    over_all(&workspace, |client| {
        let before = snapshot(workspace.root());
        let tools = client.tools();
        let mut refused = 0;
        let mut calls = 0;
        for (tool, name) in tools.iter().zip(TOOLS) {
            assert_eq!(tool["name"], name);
            let schema = &tool["inputSchema"];
            let good = valid_arguments(name);
            let mut wrong = vec![(json!({ "zzz": 1 }), "/zzz".to_owned())];
            for (parameter, about) in schema["properties"].as_object().unwrap() {
                for odd in [json!(true), json!(["x"]), json!({ "x": 1 }), json!(1.5)] {
                    wrong.push((json!({ parameter: odd }), format!("/{parameter}")));
                }
                let other = if about["type"] == "integer" { json!("1") } else { json!(5) };
                wrong.push((json!({ parameter: other }), format!("/{parameter}")));
                if schema["required"].as_array().unwrap().contains(&json!(parameter)) {
                    wrong.push((json!({ parameter: null }), format!("/{parameter}")));
                }
            }
            let mut cases: Vec<_> = wrong
                .into_iter()
                .map(|(with, pointer)| {
                    let mut arguments = good.as_object().unwrap().clone();
                    arguments.extend(with.as_object().unwrap().clone());
                    (Value::Object(arguments), pointer)
                })
                .collect();
            for required in schema["required"].as_array().unwrap() {
                let mut arguments = good.as_object().unwrap().clone();
                arguments.remove(required.as_str().unwrap());
                cases.push((Value::Object(arguments), format!("/{}", required.as_str().unwrap())));
            }
            for (arguments, pointer) in cases {
                calls += 1;
                let (code, message, data) = client.refusal(name, arguments.clone());
                assert_eq!(
                    (code, message.as_str()),
                    (-32602, "Invalid params"),
                    "{name} {arguments}"
                );
                let problems = data["problems"].as_array().unwrap();
                assert!(
                    problems.iter().any(|one| one["pointer"] == pointer),
                    "{name} {arguments}: {data}"
                );
                refused += 1;
            }
        }
        assert!(calls == refused && calls > 100, "{calls}");
        // Invalid counts.
        for count in [json!(0), json!(-1), json!(1001), json!("3"), json!(null)] {
            let (code, ..) = client.refusal("git/log", json!({ "maxCount": count }));
            assert_eq!(code, -32602, "{count}");
        }
        // Malformed calls.
        for params in [
            json!({}),
            json!({ "name": 5 }),
            json!({ "name": "filesystem/delete", "arguments": ["README.md"] }),
            json!({ "name": "filesystem/delete", "arguments": "README.md" }),
            json!({ "name": "filesystem/delete", "arguments": { "path": "README.md" }, "force": true }),
        ] {
            let answer = client.ask("tools/call", params.clone());
            assert_eq!(answer["error"]["code"], -32602, "{params}: {answer}");
        }
        // Other tools are validated against their own schemas.
        let (code, ..) = client.refusal("filesystem/edit", json!({ "path": 5 }));
        assert_eq!(code, -32602);
        assert_eq!(snapshot(workspace.root()), before);
    });
}
