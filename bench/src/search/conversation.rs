//! Client of a toolgate server for search benchmarks. The client sends one call at a time.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::ChildStdout;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::child::PipedProcess;
use crate::files::UNLIMITED;
use crate::{lines, program, text};

/// MCP session with a toolgate server over its standard streams, for search benchmarks.
pub(super) struct StdioBenchSession {
    pub(super) child: PipedProcess,
    output: BufReader<ChildStdout>,
    last_id: u64,
}

impl StdioBenchSession {
    /// Starts a server of the workspace `at` whose index is stored in `cache`, and opens a session.
    pub(super) fn start(at: &Path, cache: &Path) -> anyhow::Result<Self> {
        let settings = at.with_extension("toml");
        let cache = text(cache);
        // The figures of results are checked, so their structured values are needed.
        let results = "[server]\nresults = \"both\"\n";
        let cache = format!("[search]\ncache = {cache:?}\n");
        std::fs::write(&settings, format!("{UNLIMITED}{results}{cache}"))?;
        let args = ["stdio", &text(at), "--config", &text(&settings)];
        let mut child = PipedProcess::stdio(&program("toolgate")?, &args)?;
        lines::initialize(&mut child)?;
        let output = BufReader::new(child.output.take().context("no output")?);
        Ok(Self { child, output, last_id: 0 })
    }

    /// Calls the tool `name` and returns its structured result. Fails if the tool returns an error.
    pub(super) fn call(&mut self, name: &str, arguments: &Value) -> anyhow::Result<Value> {
        self.last_id += 1;
        let params = json!({ "name": name, "arguments": arguments });
        let id = self.last_id;
        let request =
            json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        let input = self.child.input.as_mut().context("no input")?;
        input.write_all(format!("{request}\n").as_bytes())?;
        loop {
            let mut line = String::new();
            ensure!(self.output.read_line(&mut line)? > 0, "the server closed its output");
            let mut answer: Value = serde_json::from_str(&line)?;
            // Notifications have no id.
            if answer["id"] == id {
                let result = answer["result"].take();
                ensure!(result["isError"] == false, "{name} {arguments}: {result} {answer}");
                return Ok(result["structuredContent"].clone());
            }
        }
    }
}
