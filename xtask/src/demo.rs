//! Serves this checkout with toolgate, and makes one call to the server.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};

use crate::shell::{cargo, checkout, run, run_with};

/// Environment variables for a quick first build. The build has no incremental data, and few codegen
/// units, because most build machines have few idle cores.
const QUICK: [(&str, &str); 2] =
    [("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_CODEGEN_UNITS", "4")];

/// Arguments of Cargo that build the server without its optional small executable for the sandbox,
/// and without optimization of the arithmetic for embeddings, which the demo does not use.
const BUILD: [&str; 8] = [
    "build",
    "--locked",
    "--package=toolgate",
    "--bin=toolgate",
    "--config",
    "profile.dev.package.toolgate-embed.opt-level=0",
    "--config",
    "profile.dev.package.toolgate-embed.codegen-units=4",
];

/// Builds toolgate, serves this checkout and calls `files_read`. If `built` is true, uses the
/// executable of the last build instead.
pub(crate) fn serve_and_call(built: bool) -> anyhow::Result<()> {
    if !built {
        eprintln!("building toolgate takes some minutes in a fresh clone");
        run_with(&cargo(), &BUILD, &QUICK)?;
    }
    let toolgate = checkout().join("target/debug/toolgate").display().to_string();

    eprintln!("\n==> toolgate serve . --listen 127.0.0.1:0");
    let mut server = DemoServerProcess(
        Command::new(&toolgate)
            .args(["serve", ".", "--listen", "127.0.0.1:0"])
            .current_dir(checkout())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the server")?,
    );
    let stderr = server.0.stderr.take().context("the server has no standard error")?;
    let url = printed_url(BufReader::new(stderr).lines())?;

    let arguments = r#"{"path":"README.md","line_count":3}"#;
    run(&toolgate, &["call", "files_read", arguments, "--url", &url])
}

/// Prints the output lines of a server up to the line with its URL, and returns the URL. Warnings
/// about the environment come before that line.
fn printed_url(lines: impl Iterator<Item = io::Result<String>>) -> anyhow::Result<String> {
    for line in lines {
        let line = line?;
        eprintln!("{line}");
        if let Some(url) = line.split_whitespace().find(|word| word.starts_with("http://")) {
            return Ok(url.to_owned());
        }
    }
    bail!("the server ended without printing its address")
}

/// Server process of the demo. Dropping it kills the process.
struct DemoServerProcess(Child);

impl Drop for DemoServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::printed_url;

    #[test]
    fn the_address_of_the_server_is_found_behind_warnings() {
        let lines = [
            "WARN the server runs as root, which limits no programs",
            "serving /app at http://127.0.0.1:8000/mcp",
        ];
        let url = printed_url(lines.into_iter().map(|line| Ok(line.to_owned())));
        assert_eq!(url.unwrap(), "http://127.0.0.1:8000/mcp");
    }

    #[test]
    fn a_server_that_prints_no_address_is_an_error() {
        let lines = ["toolgate: cannot listen"];
        let refused = printed_url(lines.into_iter().map(|line| Ok(line.to_owned())));
        assert!(refused.unwrap_err().to_string().contains("without printing its address"));
    }
}
