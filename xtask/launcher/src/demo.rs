//! Serves this checkout with toolgate, and makes one call to the server.

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::{cargo, checkout};

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
pub(crate) fn serve_and_call(built: bool) -> io::Result<()> {
    if !built {
        eprintln!("building toolgate takes some minutes in a fresh clone");
        run(cargo().args(BUILD).envs(QUICK))?;
    }
    // Cargo builds all programs into the folder of this one.
    let toolgate = std::env::current_exe()?.with_file_name("toolgate");
    let arguments = r#"{"path":"README.md","line_count":3}"#;
    let (_server, url) = DemoServerProcess::start(&toolgate)?;
    run(Command::new(&toolgate).args(["call", "files_read", arguments, "--url", &url]))
}

/// Prints the command line of `command`, and runs it in the checkout with its output shown. Fails
/// if the program fails.
fn run(command: &mut Command) -> io::Result<()> {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(|word| Path::new(word).display().to_string()).collect();
    let name = words[0].rsplit('/').next().unwrap_or_default();
    let line = format!("{name} {}", words[1..].join(" "));
    eprintln!("\n==> {line}");
    let started = Instant::now();
    let status = command.current_dir(checkout()).stdin(Stdio::null()).status();
    let status =
        status.map_err(|err| io::Error::other(format!("cannot start `{}`: {err}", words[0])))?;
    eprintln!("    {:.1} s", started.elapsed().as_secs_f64());
    if !status.success() {
        return Err(io::Error::other(format!("`{line}` failed: {status}")));
    }
    Ok(())
}

/// Prints the output lines of a server up to the line with its URL, and returns the URL. Warnings
/// about the environment come before that line.
fn printed_url(lines: impl Iterator<Item = io::Result<String>>) -> io::Result<String> {
    for line in lines {
        let line = line?;
        eprintln!("{line}");
        if let Some(url) = line.split_whitespace().find(|word| word.starts_with("http://")) {
            return Ok(url.to_owned());
        }
    }
    Err(io::Error::other("the server ended without printing its address"))
}

/// Server process of the demo. Dropping it kills the process.
struct DemoServerProcess(Child);

impl DemoServerProcess {
    /// Starts the server `toolgate`, and returns its process and its URL.
    fn start(toolgate: &Path) -> io::Result<(Self, String)> {
        let args = ["serve", ".", "--listen", "127.0.0.1:0"];
        eprintln!("\n==> toolgate {}", args.join(" "));
        let mut command = Command::new(toolgate);
        command.args(args).current_dir(checkout()).stdin(Stdio::null()).stderr(Stdio::piped());
        let cannot_start =
            |err| io::Error::other(format!("cannot start `{}`: {err}", toolgate.display()));
        let mut server = Self(command.spawn().map_err(cannot_start)?);
        let no_stderr = || io::Error::other("the server has no standard error");
        let stderr = server.0.stderr.take().ok_or_else(no_stderr)?;
        let url = printed_url(BufReader::new(stderr).lines())?;
        Ok((server, url))
    }
}

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
