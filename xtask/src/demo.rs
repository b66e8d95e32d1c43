//! Serves this checkout and makes one call against the server.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::Context;

use crate::shell::{cargo, checkout, run, run_with};

/// Variables for a quick first build: without incremental data and debug information.
const QUICK: [(&str, &str); 2] = [("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "false")];

/// Builds toolgate, serves this checkout and calls `files_read`.
pub(crate) fn serve_and_call() -> anyhow::Result<()> {
    eprintln!("building toolgate takes some minutes in a fresh clone");
    run_with(&cargo(), &["build", "--locked", "--package", "toolgate"], &QUICK)?;
    let toolgate = checkout().join("target/debug/toolgate").display().to_string();

    eprintln!("\n==> toolgate serve . --listen 127.0.0.1:0");
    let mut server = Server(
        Command::new(&toolgate)
            .args(["serve", ".", "--listen", "127.0.0.1:0"])
            .current_dir(checkout())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the server")?,
    );
    let stderr = server.0.stderr.take().context("the server has no standard error")?;
    let mut lines = BufReader::new(stderr).lines();
    let line = lines.next().context("the server printed nothing")??;
    eprintln!("{line}");
    let url = line.split_whitespace().last().context("the server printed no address")?;

    let arguments = r#"{"path":"README.md","line_count":3}"#;
    run(&toolgate, &["call", "files_read", arguments, "--url", url])
}

/// A server process. It is killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
