//! The workstation: nineteen tools in its own words, and the others as `toolset/verb`.

use serde_json::{Map, Value, json};

use super::{Asked, Ids, Said, Spelled, Spoken, only, refused, rpc};

/// A client of the workstation's.
#[derive(Default)]
pub(super) struct Workstation(Ids);

const PATH: &str = "/workstation";

/// The catalog's tool, its name here, and its arguments: theirs, then ours.
type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const CONTRACTED: [Row; 17] = [
    ("files.read", "filesystem/read", &[("path", "path")]),
    ("files.write", "filesystem/write", &[("path", "path"), ("content", "content")]),
    ("files.list", "filesystem/list", &[("path", "path")]),
    ("files.delete", "filesystem/delete", &[("path", "path")]),
    ("files.mkdir", "filesystem/mkdir", &[("path", "path")]),
    ("files.exists", "filesystem/file_exists", &[("path", "path")]),
    ("git.status", "git/status", &[("repo", "repositoryPath")]),
    ("git.log", "git/log", &[("repo", "repositoryPath"), ("count", "maxCount")]),
    ("git.diff", "git/diff", &[("repo", "repositoryPath")]),
    ("git.branches", "git/branches", &[("repo", "repositoryPath")]),
    ("git.add", "git/add", &[("paths", "files"), ("repo", "repositoryPath")]),
    ("git.commit", "git/commit", &[("message", "message"), ("repo", "repositoryPath")]),
    ("ci.build", "ci/build", &[("project", "projectPath")]),
    ("ci.test", "ci/test", &[("project", "projectPath")]),
    ("ci.restore", "ci/restore", &[("project", "projectPath")]),
    ("ci.run", "ci/run", &[("command", "command"), ("folder", "workingDirectory")]),
    ("ci.diagnostics", "ci/diagnostics", &[]),
];

impl Spoken for Workstation {
    fn spell(&self, tool: &str, input: &Value) -> Option<Spelled> {
        let Some((_, name, arguments)) = CONTRACTED.iter().find(|(own, _, _)| *own == tool) else {
            let name = tool.replace('.', "/");
            let name = match name.strip_prefix("files/") {
                Some(verb) => format!("filesystem/{verb}"),
                None => name,
            };
            return Some((name, input.clone()));
        };
        // A file is written whatever is there: that nothing is replaced cannot be asked for.
        if tool == "files.write" && input["overwrite"] != true {
            return None;
        }
        let mut input = input.clone();
        // What the contract always does need not, and cannot, be said.
        for (key, always) in [("overwrite", true), ("parents", true)] {
            if input[key] == always {
                input.as_object_mut()?.shift_remove(key);
            }
        }
        let given = only(&input, &arguments.iter().map(|(ours, _)| *ours).collect::<Vec<_>>())?;
        let mut spelled = Map::new();
        for (key, value) in given {
            let theirs = arguments.iter().find(|(ours, _)| *ours == key)?.1;
            let value = match (theirs, value) {
                ("files", Value::Array(mut paths)) if paths.len() == 1 => paths.remove(0),
                ("files", _) => return None,
                (_, value) => value,
            };
            spelled.insert(theirs.to_owned(), value);
        }
        Some(((*name).to_owned(), Value::Object(spelled)))
    }

    fn call(&mut self, name: &str, input: &Value) -> Asked {
        rpc(&mut self.0, PATH, "tools/call", &json!({ "name": name, "arguments": input }))
    }

    fn list(&mut self, _cursor: Option<&str>) -> Option<Asked> {
        Some(rpc(&mut self.0, PATH, "tools/list", &json!({})))
    }

    fn ping(&mut self) -> Asked {
        rpc(&mut self.0, PATH, "ping", &json!({}))
    }

    fn rpc(&mut self, method: &str, params: &Value) -> Asked {
        rpc(&mut self.0, PATH, method, params)
    }

    fn decode(&self, message: &Value) -> Said {
        if let Some(said) = refused(message) {
            return said;
        }
        let result = &message["result"];
        let text = result["content"].as_str().unwrap_or_default().to_owned();
        Said { text, data: result.clone(), ..Said::default() }
    }
}
